package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// claim names one lease to the server. The grant ID is what only its owner knows.
type claim struct {
	name    string
	token   Token
	grantID uuid.UUID
}

// answer is what the server says to one try to acquire: granted, or who holds it.
type answer struct {
	granted   bool
	token     Token
	holder    string
	expiresAt time.Time
	remaining time.Duration
}

// verdict is what a heartbeat brought for one lease: renewed with so much time left, busy, or the reason it is lost.
type verdict struct {
	outcome   string
	remaining time.Duration
}

const (
	outcomeRenewed = "renewed"
	outcomeBusy    = "busy" // another transaction has locked the row: ask for this one alone
)

// store is what the loops of this package need from the database; the tests of timers put a fake in its place.
type store interface {
	acquire(ctx context.Context, r request, session, grantID uuid.UUID, retry bool) (answer, error)
	renewAll(ctx context.Context, claims []claim) (map[claim]verdict, error)
	renew(ctx context.Context, c claim) (time.Duration, error)
	renewBusy(ctx context.Context, c claim) (time.Duration, error)
	check(ctx context.Context, c claim) (time.Duration, error)
	release(ctx context.Context, c claim) (bool, error)
	releaseAll(ctx context.Context, claims []claim) error
	abandon(ctx context.Context, name string, grantID uuid.UUID) error
	rest() // closes the heartbeat's connection until the next beat
}

// pgStore speaks to PostgreSQL: through the application's pool, and for heartbeats through a connection of its own, so
// that a pool that the application has exhausted costs no lease.
type pgStore struct {
	pool    *pgxpool.Pool
	queries *queries

	// explicit says that the sessions' default isolation is not READ COMMITTED: statements then travel between BEGIN
	// and COMMIT, still in one round trip.
	explicit atomic.Bool

	beat *pgx.Conn // owned by the heartbeat's goroutine
}

// errUnconfirmed marks a commit that PostgreSQL reported as done, but without waiting for the synchronous standby.
var errUnconfirmed = errors.New("committed without waiting for the synchronous standby")

const unconfirmedKey = "pglock.unconfirmed commit"

// ObserveCommits prepares a connection configuration, before the pool is made, so that this library learns of a commit
// that PostgreSQL reports as done although its wait for a synchronous standby was cancelled (by pg_cancel_backend, say);
// the server tells so in a warning alone. With it such a grant is asked for again and such a fenced write is reported as
// ErrOutcomeUnknown. A handler that is set already is still called. Without synchronous replication it does nothing.
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

// Unconfirmed reports whether the last commit on conn came without the synchronous standby's confirmation, and forgets
// it. It sees only connections whose configuration went through ObserveCommits.
func Unconfirmed(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	_, found := data[unconfirmedKey]
	delete(data, unconfirmedKey)
	return found
}

// query runs one statement as a transaction of its own at READ COMMITTED, whatever the session's default, and gives
// each row to scan. It returns after the commit.
func (s *pgStore) query(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	if !s.explicit.Load() {
		rows, err := conn.Query(ctx, sql, args...)
		if err == nil {
			err = readAll(rows, scan)
		}
		if sqlState(err) != stateIsolation {
			return confirmed(conn, err)
		}
		s.explicit.Store(true) // nothing was done; say it explicitly from now on
	}
	batch := &pgx.Batch{}
	batch.Queue("begin isolation level read committed")
	batch.Queue(sql, args...)
	batch.Queue("commit")
	results := conn.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		var rows pgx.Rows
		if rows, err = results.Query(); err == nil {
			err = readAll(rows, scan)
		}
	}
	if err == nil {
		_, err = results.Exec()
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil && conn.PgConn().TxStatus() == 'E' {
		_, _ = conn.Exec(ctx, "rollback") // keeps the connection; a failure closes it, which rolls back as well
	}
	return confirmed(conn, err)
}

func readAll(rows pgx.Rows, scan func(pgx.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func confirmed(conn *pgx.Conn, err error) error {
	if Unconfirmed(conn) && err == nil {
		return errUnconfirmed
	}
	return err
}

// pooled runs one statement on a connection of the pool, again when the server undid it for a reason that passes.
func (s *pgStore) pooled(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return &noConnectionError{err}
		}
		err = s.query(ctx, conn.Conn(), sql, args, scan)
		conn.Release()
		if !transient(err) || attempt == attempts || !pause(ctx, time.Duration(attempt)*time.Millisecond) {
			return err
		}
	}
}

// pause waits about d, with jitter, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *pgStore) acquire(ctx context.Context, r request, session, grantID uuid.UUID, retry bool) (a answer, err error) {
	var metadata *string
	if r.metadata != nil {
		text := string(r.metadata)
		metadata = &text
	}
	err = s.pooled(ctx, s.queries.acquire,
		[]any{r.name, grantID.String(), session.String(), r.holder, interval(r.ttl), metadata, retry},
		func(rows pgx.Rows) error {
			var token, expiresAt, remaining *int64
			var holder *string
			if err := rows.Scan(&a.granted, &token, &holder, &expiresAt, &remaining); err != nil {
				return err
			}
			if holder != nil {
				a.token, a.holder, a.expiresAt = Token(*token), *holder, moment(expiresAt)
			}
			a.remaining = time.Duration(*remaining) * time.Microsecond
			return nil
		})
	return a, err
}

// moment is a time from the server, in UTC; zero when there is none.
func moment(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return time.UnixMicro(*us).UTC()
}

// interval is d as PostgreSQL reads it. Seconds, as version 14 takes no more than 2^31 microseconds.
func interval(d time.Duration) string {
	return fmt.Sprintf("%d.%06d seconds", d/time.Second, d%time.Second/time.Microsecond)
}

func (s *pgStore) renewAll(ctx context.Context, claims []claim) (map[claim]verdict, error) {
	conn, err := s.beatConn(ctx)
	if err != nil {
		return nil, err
	}
	names, tokens, grantIDs := columns(claims)
	type key struct {
		name  string
		token Token
	}
	asked := make(map[key]claim, len(claims))
	for _, c := range claims {
		asked[key{c.name, c.token}] = c
	}
	verdicts := make(map[claim]verdict, len(claims))
	err = s.query(ctx, conn, s.queries.renewAll, []any{names, tokens, grantIDs}, func(rows pgx.Rows) error {
		var k key
		var v verdict
		var remaining int64
		if err := rows.Scan(&k.name, &k.token, &v.outcome, &remaining); err != nil {
			return err
		}
		v.remaining = time.Duration(remaining) * time.Microsecond
		verdicts[asked[k]] = v
		return nil
	})
	if err != nil && !transient(err) {
		s.rest() // whatever is wrong with the connection, the next attempt has a new one
	}
	return verdicts, err
}

func columns(claims []claim) (names []string, tokens []int64, grantIDs []string) {
	for _, c := range claims {
		names, tokens, grantIDs = append(names, c.name), append(tokens, int64(c.token)), append(grantIDs, c.grantID.String())
	}
	return names, tokens, grantIDs
}

// beatConn is the heartbeat's own connection, made as the pool would make it.
func (s *pgStore) beatConn(ctx context.Context) (*pgx.Conn, error) {
	if s.beat != nil && !s.beat.IsClosed() {
		return s.beat, nil
	}
	pool := s.pool.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, fmt.Errorf("BeforeConnect: %w", err)
		}
	}
	ObserveCommits(config)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("AfterConnect: %w", err)
		}
	}
	if pool.PrepareConn != nil {
		if ok, err := pool.PrepareConn(ctx, conn); err != nil || !ok {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("PrepareConn refused the heartbeat's connection: %w", errors.Join(err, ctx.Err()))
		}
	}
	s.beat = conn
	return conn, nil
}

func (s *pgStore) rest() {
	if s.beat == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // says goodbye after everything else ended
	defer cancel()
	_ = s.beat.Close(ctx)
	s.beat = nil
}

func (s *pgStore) renew(ctx context.Context, c claim) (time.Duration, error) {
	return s.remaining(ctx, s.queries.renew, c)
}

// renewBusy is renew on the heartbeat's connection.
func (s *pgStore) renewBusy(ctx context.Context, c claim) (time.Duration, error) {
	conn, err := s.beatConn(ctx)
	if err != nil {
		return 0, err
	}
	var us int64
	err = s.query(ctx, conn, s.queries.renew, []any{c.name, int64(c.token), c.grantID.String()}, func(rows pgx.Rows) error {
		return rows.Scan(&us)
	})
	return time.Duration(us) * time.Microsecond, err
}

func (s *pgStore) check(ctx context.Context, c claim) (time.Duration, error) {
	return s.remaining(ctx, s.queries.check, c)
}

func (s *pgStore) remaining(ctx context.Context, sql string, c claim) (time.Duration, error) {
	var us int64
	err := s.pooled(ctx, sql, []any{c.name, int64(c.token), c.grantID.String()}, func(rows pgx.Rows) error {
		return rows.Scan(&us)
	})
	return time.Duration(us) * time.Microsecond, err
}

func (s *pgStore) release(ctx context.Context, c claim) (released bool, err error) {
	err = s.pooled(ctx, s.queries.release, []any{c.name, int64(c.token), c.grantID.String()}, func(rows pgx.Rows) error {
		return rows.Scan(&released, nil)
	})
	return released, err
}

func (s *pgStore) releaseAll(ctx context.Context, claims []claim) error {
	names, tokens, grantIDs := columns(claims)
	return s.pooled(ctx, s.queries.releaseAll, []any{names, tokens, grantIDs}, func(pgx.Rows) error { return nil })
}

func (s *pgStore) abandon(ctx context.Context, name string, grantID uuid.UUID) error {
	return s.pooled(ctx, s.queries.abandon, []any{name, grantID.String()}, func(pgx.Rows) error { return nil })
}
