package advisory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	// round is how long a bridge waits in the server's queue before it leaves the queue for a moment. A statement that
	// waits holds a snapshot, which keeps VACUUM from its work, and which CREATE INDEX CONCURRENTLY waits for. So a
	// round is shorter than the second after which the server looks for deadlocks.
	round = 500 * time.Millisecond
	// between is how long a bridge stays out of the queue.
	between = 5 * time.Millisecond
	// goodbye limits the talk with the server at the end of a session.
	goodbye = 5 * time.Second
)

// session is a connection whose backend holds the advisory lock. One goroutine at a time uses it.
type session struct {
	conn   *pgx.Conn
	pid    int32
	name   string // of the lock
	key    Key
	number number
	shared bool
	idle   time.Duration // how long the session may be idle before the server ends it
	cut    bool          // the release of the Held has ended it, in the middle of a statement
}

// open prepares the session and computes the key. home is where the lease is from.
func (s *session) open(ctx context.Context, pooled bool, home hooks.Grant) error {
	var hash int32
	var extended int64
	var set string
	var standby, atHome bool
	err := s.conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid(),
		pg_catalog.set_config('idle_session_timeout', $1::text, false),
		pg_catalog.hashtext($2::text), pg_catalog.hashtextextended($2::text, $3::bigint),
		pg_catalog.pg_is_in_recovery(), `+pgx.Identifier{home.Schema, "database_id"}.Sanitize()+`()
			OPERATOR(pg_catalog.=) $4::text::uuid`, pgx.QueryExecModeExec, strconv.FormatInt(s.idle.Milliseconds(), 10),
		s.key.text, s.key.first, home.DatabaseID.String()).Scan(&s.pid, &set, &hash, &extended, &standby, &atHome)
	err = pglock.ForSiblings(hooks.Key{}).ErrorFromSQL(err, s.name, 0)
	if errors.Is(err, pglock.ErrSchema) { // the client has found its schema in its own database
		return s.elsewhere()
	}
	if err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	if !pooled && uint32(s.pid) != s.conn.PgConn().PID() {
		return fmt.Errorf("%w: the connection names backend %d, but backend %d answers: "+
			"give Config.ConnConfig one that leads to the server itself",
			ErrPooler, s.conn.PgConn().PID(), s.pid)
	}
	if standby { // which takes advisory locks without complaint
		return fmt.Errorf("%w: a standby has its own advisory locks: give Config.ConnConfig one that leads to the "+
			"primary (target_session_attrs=read-write)", pglock.ErrReadOnly)
	}
	if !atHome {
		return s.elsewhere()
	}
	s.number = s.key.number(hash, extended)
	return nil
}

func (s *session) elsewhere() error {
	config := s.conn.Config()
	return fmt.Errorf("%w: database %q of %s is not the client's: give Config.ConnConfig one that leads to the same "+
		"database", pglock.ErrWrongDatabase, cmp.Or(config.Database, config.User), config.Host)
}

func (s *session) function(prefix string) string {
	if s.shared {
		return prefix + "_shared"
	}
	return prefix
}

// try takes the advisory lock if nobody has it or waits for it.
func (s *session) try(ctx context.Context) (locked bool, err error) {
	call, args := s.number.call(s.function("pg_try_advisory_lock"))
	err = s.conn.QueryRow(ctx, "SELECT "+call, args...).Scan(&locked)
	return locked, err
}

// lock takes the advisory lock, and waits for it until ctx ends. Then the error is a HeldError.
func (s *session) lock(ctx context.Context) error {
	held := &HeldError{Lock: s.name, Key: s.key}
	locked, err := s.try(ctx)
	for err == nil && !locked {
		held.PID, err = s.holder(ctx)
		if err == nil {
			locked, err = s.wait(ctx)
		}
		if err == nil && !locked && !pause.For(ctx, between) {
			err = ctx.Err()
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", held, ctx.Err())
	}
	return fmt.Errorf("take the advisory lock (%v): %w", s.key, err)
}

// wait waits in the server's queue for the advisory lock, for one round.
func (s *session) wait(ctx context.Context) (locked bool, err error) {
	call, args := s.number.call(s.function("pg_advisory_lock"))
	batch := &pgx.Batch{} // a transaction of its own: the limit ends with it, the lock does not
	batch.Queue("SELECT pg_catalog.set_config('lock_timeout', $1::text, true)",
		strconv.FormatInt(round.Milliseconds(), 10))
	batch.Queue("SELECT "+call, args...)
	err = s.conn.SendBatch(ctx, batch).Close()
	if protocol.Transient(err) && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// holder is the backend that has the advisory lock, or 0.
func (s *session) holder(ctx context.Context) (pid int32, err error) {
	classid, objid, objsubid := s.number.tag()
	err = s.conn.QueryRow(ctx, "SELECT pid "+ofKey+" LIMIT 1", classid, objid, objsubid).Scan(&pid)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return pid, err
}

// ofKey are the sessions that have the advisory lock of a key in this database.
const ofKey = `FROM pg_catalog.pg_locks
	WHERE locktype = 'advisory' AND granted
	AND classid::bigint = $1::bigint AND objid::bigint = $2::bigint AND objsubid = $3::int
	AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`

// holds is a query that says whether the backend has the advisory lock. Any session of the database can ask it.
func (s *session) holds() (sql string, args []any) {
	classid, objid, objsubid := s.number.tag()
	mode := "ExclusiveLock"
	if s.shared {
		mode = "ShareLock"
	}
	sql = "SELECT EXISTS (SELECT " + ofKey + " AND pid = $4::int AND mode = $5::text)"
	return sql, []any{classid, objid, objsubid, s.pid, mode}
}

// verify asks over the session's own connection whether it still has the advisory lock, and lets it be idle for that
// long from now on. The error is a LostError.
func (s *session) verify(ctx context.Context, idle time.Duration) error {
	sql, args := s.holds()
	sql += ", pg_catalog.set_config('idle_session_timeout', $6::text, false)"
	args = append(args, strconv.FormatInt(idle.Milliseconds(), 10))
	err := s.confirm(ctx, sql, args, nil)
	if err == nil {
		s.idle = idle
	}
	return err
}

// confirm asks whether the session has the advisory lock. The error is a LostError.
func (s *session) confirm(ctx context.Context, sql string, args []any, others ...any) error {
	for {
		var is bool
		err := s.conn.QueryRow(ctx, sql, args...).Scan(append([]any{&is}, others...)...)
		switch {
		case protocol.Transient(err) && ctx.Err() == nil: // somebody has cancelled the statement
		case err != nil || !is:
			return s.lost(err)
		default:
			return nil
		}
	}
}

func (s *session) lost(err error) *LostError { return &LostError{Lock: s.name, Key: s.key, Err: err} }

// end gives the advisory lock back and closes the connection. The error is a LostError if the lock was lost before.
func (s *session) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	defer s.conn.Close(ctx)
	call, args := s.number.call(s.function("pg_advisory_unlock"))
	if s.cut {
		return nil
	}
	return s.confirm(ctx, "SELECT "+call, args)
}
