package peer

import (
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestStatementsAreCountedHoweverTheirMessagesAreCut(t *testing.T) {
	var sent []byte
	for _, m := range []pgproto3.FrontendMessage{
		&pgproto3.SSLRequest{},
		&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30,
			Parameters: map[string]string{"user": "EQEQ"}},
		&pgproto3.PasswordMessage{Password: "QE"},
		&pgproto3.Parse{Query: "SELECT 'E'"},
		&pgproto3.Describe{ObjectType: 'S'},
		&pgproto3.Sync{},
		&pgproto3.Bind{Parameters: [][]byte{[]byte("QQQQQQQQQ")}},
		&pgproto3.Execute{},
		&pgproto3.Bind{},
		&pgproto3.Bind{},
		&pgproto3.Execute{},
		&pgproto3.Sync{},
		&pgproto3.Query{String: "COMMIT"},
		&pgproto3.Query{String: "-- ping"},
		&pgproto3.Query{String: "-"},
		&pgproto3.Terminate{},
	} {
		var err error
		if sent, err = m.Encode(sent); err != nil {
			t.Fatal(err)
		}
	}
	for size := 1; size <= len(sent); size++ {
		c := &statementConn{}
		var n int64
		for from := 0; from < len(sent); from += size {
			n += c.statements(sent[from:min(from+size, len(sent))])
		}
		if n != 4 {
			t.Errorf("cut every %d bytes: %d statements, want 4", size, n)
		}
	}
}
