package protocol

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnconfirmed marks a commit that PostgreSQL reported as done, but without waiting for the synchronous standby.
var ErrUnconfirmed = errors.New("committed without waiting for the synchronous standby")

const unconfirmedKey = "pglock.unconfirmed commit"

// ObserveCommits makes connections of this configuration notice such commits: the server reports them only in a
// warning.
func ObserveCommits(config *pgx.ConnConfig) {
	next := config.OnNotice
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		if notice.Code == "01000" && notice.Routine == "SyncRepWaitForLSN" {
			conn.CustomData()[unconfirmedKey] = true
		}
		if next != nil {
			next(conn, notice)
		}
	}
}

// Unconfirmed reports whether a commit on conn came without the synchronous standby's confirmation since the last
// call, and forgets it. If others use the connection, call it also before a commit.
func Unconfirmed(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	_, found := data[unconfirmedKey]
	delete(data, unconfirmedKey)
	return found
}
