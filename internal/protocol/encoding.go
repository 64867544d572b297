package protocol

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// EncodingError says that the server would read the bytes of a text from Go as other characters: a name would be that
// of another lock. Nothing was sent.
type EncodingError struct{ Client string }

func (e *EncodingError) Error() string {
	return fmt.Sprintf("client_encoding of the connection is %s: it must be UTF8, as texts are in Go; put "+
		"client_encoding=UTF8 into the connection string", e.Client)
}

// SQLState is the server's for a text that is not of its encoding.
func (e *EncodingError) SQLState() string { return "22021" }

// CheckEncoding refuses a connection whose session takes texts for others than they are. SQL_ASCII passes on the bytes
// as they are. A pooler that does not tell the encoding is trusted.
func CheckEncoding(conn *pgx.Conn) error {
	status := conn.PgConn().ParameterStatus
	switch client, own := status("client_encoding"), status("server_encoding"); {
	case client == "UTF8", client == "", client == "SQL_ASCII" && (own == "UTF8" || own == "SQL_ASCII"):
		return nil
	default:
		return &EncodingError{client}
	}
}
