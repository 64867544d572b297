package pglock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgStore speaks to PostgreSQL: through the application's pool, and for heartbeats through a connection of its own, so
// that a pool that the application has exhausted costs no lease.
type pgStore struct {
	executor
	pool *pgxpool.Pool

	life context.Context // ends with close: no statement outlives it
	end  context.CancelFunc

	acquires, waits *lane[ask, answer]
	releases        *lane[claim, ending]
	checks          *lane[claim, remains]

	ears     *pgx.ConnConfig // for LISTEN; nil: made as the pool makes its connections
	beatConn *pgx.Conn       // owned by the heartbeat's goroutine
}

func newPgStore(pool *pgxpool.Pool, q *queries, listen *pgx.ConnConfig) *pgStore {
	s := &pgStore{executor: executor{queries: q}, pool: pool, ears: listen}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // the store's own life, ended by close
	s.makeLanes()
	return s
}

func (s *pgStore) close() {
	s.end()
	for _, l := range []interface {
		shut()
		wait()
	}{s.acquires, s.waits, s.releases, s.checks} {
		l.shut()
		l.wait()
	}
	s.rest()
}

func (s *pgStore) landed(ctx context.Context) {
	s.acquires.shut()
	s.waits.shut()
	defer context.AfterFunc(ctx, s.end)()
	s.acquires.wait()
	s.waits.wait()
}

func (s *pgStore) orphans(take func(ask, answer, error)) {
	s.acquires.orphan, s.waits.orphan = take, take
}

func (s *pgStore) acquire(ctx context.Context, q ask) (answer, error) {
	if q.request.wait {
		return s.waits.do(ctx, q)
	}
	return s.acquires.do(ctx, q)
}

func (s *pgStore) check(ctx context.Context, c claim) (time.Duration, error) {
	r, err := s.checks.do(ctx, c)
	if err == nil && r.lost != "" {
		err = &LostError{Name: c.name, Token: c.token, Reason: r.lost}
	}
	return r.left, err
}

func (s *pgStore) reason(ctx context.Context, c claim) (Reason, error) {
	r, err := s.checks.do(ctx, c)
	return r.lost, err
}

func (s *pgStore) release(ctx context.Context, c claim, announce bool) (bool, handed, error) {
	if announce && c.slot == 0 {
		return s.releaseAndAnnounce(ctx, c)
	}
	e, err := s.releases.do(ctx, c)
	return e.released, e.handed, err
}

// releaseAndAnnounce ends a lease and tells whoever has the lock then, in one round trip and two transactions: NOTIFY must
// not wait for the disk.
func (s *pgStore) releaseAndAnnounce(ctx context.Context, c claim) (released bool, h handed, err error) {
	var told int64
	var n int64
	scan := func(rows pgx.Rows) error {
		e, err := scanEnding(rows.Scan, nil, &n)
		released, h = e.released, e.handed
		return err
	}
	err = s.onPooled(ctx, func(conn *pgx.Conn) error {
		release := statement{s.queries.release, c.args(), scan}
		tell := statement{s.queries.announce, []any{[]string{c.name}, []int{0}}, func(rows pgx.Rows) error { return rows.Scan(&told, nil) }}
		_ = Unconfirmed(conn)
		if s.isNameless(conn) {
			return s.query(ctx, conn, release.sql, release.args, release.scan)
		}
		var err error
		if s.explicit.Load() || conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
			err = s.pipelined(ctx, conn, release, tell)
		} else {
			err = s.named(conn, func() error {
				if s.isNameless(conn) {
					return s.once(ctx, conn, release.sql, release.args, release.scan)
				}
				return oneAfterAnother(ctx, conn, release, tell)
			})
		}
		if sqlState(err) == stateIsolation { // nothing was done
			return s.query(ctx, conn, release.sql, release.args, release.scan)
		}
		return confirmed(conn, err)
	})
	if told > 0 {
		h.announced, h.slots, h.watched = true, withoutHead(h.slots), false
	}
	return released, h, err
}

// withoutHead leaves the slots that were not announced with the release.
func withoutHead(slots []int) (others []int) {
	for _, s := range slots {
		if s != 0 {
			others = append(others, s)
		}
	}
	return others
}

// pooled runs one statement on a connection of the pool, again when the server undid it for a reason that passes. Once there
// is a connection the server has patience's time: one that died in silence would hold the call until ctx ends.
func (s *pgStore) pooled(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	return s.onPooled(ctx, func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return s.query(ctx, conn, sql, args, scan)
	})
}

// onPooled lends f a connection of the pool, again when the server undid what it did for a reason that passes.
func (s *pgStore) onPooled(ctx context.Context, f func(*pgx.Conn) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	for attempt := 1; ; attempt++ {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return &noConnectionError{err}
		}
		err = f(conn.Conn())
		conn.Release()
		if !transient(err) || attempt == transientAttempts || !pause(ctx, time.Duration(attempt)*time.Millisecond) {
			return err
		}
	}
}

// beating runs a statement on the heartbeat's own connection. Whatever is wrong with it, the next attempt has a new one.
func (s *pgStore) beating(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	if s.beatConn == nil || s.beatConn.IsClosed() {
		conn, err := s.connect(ctx)
		if err != nil {
			return err
		}
		s.beatConn = conn
	}
	err := s.query(ctx, s.beatConn, sql, args, scan)
	if err != nil && sqlState(err) == "" || connectionLost(err) {
		s.rest()
	}
	return err
}

// connect opens a connection outside the pool, made as the pool would make it.
func (s *pgStore) connect(ctx context.Context) (*pgx.Conn, error) {
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
			return nil, fmt.Errorf("PrepareConn refused a connection of the client: %w", errors.Join(err, ctx.Err()))
		}
	}
	return conn, nil
}

func (s *pgStore) rest() {
	if s.beatConn != nil {
		farewell(s.beatConn)
		s.beatConn = nil
	}
}

func farewell(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // says goodbye after everything else ended
	defer cancel()
	_ = conn.Close(ctx)
}

func (s *pgStore) beat(ctx context.Context, w who, p pulse) (map[claim]verdict, map[int64]sighting, error) {
	names, tokens, grantIDs, slots := columns(p.claims)
	var sql string
	var args []any
	looking := []any{w.key.String(), w.holder, interval(w.ttl), p.nested}
	switch {
	case !p.look:
		sql, args = s.queries.renewAll, []any{names, tokens, grantIDs, slots}
	case len(p.claims) == 0:
		sql, args = s.queries.look, looking
	default:
		sql, args = s.queries.beat, append(looking, names, tokens, grantIDs, slots)
	}
	verdicts, sightings := make(map[claim]verdict, len(p.claims)), make(map[int64]sighting)
	err := s.beating(ctx, sql, args, func(rows pgx.Rows) error {
		var n, ticket, remaining, expiresAt *int64
		var outcome, circle *string
		var first *bool
		if err := rows.Scan(&n, &outcome, &expiresAt, &ticket, &remaining, &first, &circle); err != nil {
			return err
		}
		left := time.Duration(orZero(remaining)) * time.Microsecond
		if n != nil {
			verdicts[p.claims[*n-1]] = verdict{*outcome, left, moment(expiresAt)}
			return nil
		}
		seen := sighting{first: orZero(first), remaining: left}
		if circle != nil {
			if err := json.Unmarshal([]byte(*circle), &seen.circle); err != nil {
				return fmt.Errorf("read a circle of waiters: %w", err)
			}
		}
		sightings[*ticket] = seen
		return nil
	})
	return verdicts, sightings, err
}

func (s *pgStore) renewBusy(ctx context.Context, c claim, wait time.Duration) (v verdict, err error) {
	v.outcome = outcomeRenewed
	err = s.beating(ctx, s.queries.renewWaiting, append(c.args(), fmt.Sprint(max(1, wait.Milliseconds()))), v.scan)
	return v, err
}

func (s *pgStore) renew(ctx context.Context, c claim) (v verdict, err error) {
	v.outcome = outcomeRenewed
	err = s.pooled(ctx, s.queries.renew, c.args(), v.scan)
	return v, err
}

func (v *verdict) scan(rows pgx.Rows) error {
	var us, expiresAt int64
	err := rows.Scan(&us, &expiresAt, nil)
	v.remaining, v.expiresAt = time.Duration(us)*time.Microsecond, moment(&expiresAt)
	return err
}

func (s *pgStore) ownTickets(ctx context.Context, w who, tickets []int64) (all []ticketOf, err error) {
	err = s.beating(ctx, s.queries.ownTickets, []any{w.key.String(), tickets}, func(rows pgx.Rows) error {
		var t ticketOf
		var id string
		err := rows.Scan(&t.name, &id)
		if err == nil {
			t.grantID, err = uuid.Parse(id)
		}
		all = append(all, t)
		return err
	})
	return all, err
}

func (s *pgStore) giveUp(ctx context.Context, w who, ups []*giveUp) ([]takenBack, error) {
	names, grantIDs := make([]string, len(ups)), make([]string, len(ups))
	for i, u := range ups {
		names[i], grantIDs[i] = u.name, u.grantID.String()
	}
	backs := make([]takenBack, len(ups))
	err := s.beating(ctx, s.queries.giveUp, []any{w.key.String(), names, grantIDs, ups[0].spend}, func(rows pgx.Rows) error {
		var b takenBack
		var n int64
		var place *int
		var token, expiresAt *int64
		var holder *string
		var watched *bool
		err := rows.Scan(&n, &b.ended, &place, &token, &holder, &expiresAt, &b.handed.hints, &b.handed.slots, &watched, nil)
		b.place, b.token, b.holder, b.expiresAt = orZero(place), Token(orZero(token)), orZero(holder), moment(expiresAt)
		b.handed.watched = orZero(watched)
		backs[n-1] = b
		return err
	})
	return backs, err
}

func (s *pgStore) releaseAll(ctx context.Context, claims []claim) ([]ending, error) {
	names, tokens, grantIDs, slots := columns(claims)
	endings := make([]ending, len(claims))
	return endings, s.beating(ctx, s.queries.releaseMany, []any{names, tokens, grantIDs, slots}, func(rows pgx.Rows) error {
		var n int64
		e, err := scanEnding(rows.Scan, nil, &n)
		endings[n-1] = e
		return err
	})
}

func (s *pgStore) endSession(ctx context.Context, w who) error {
	return s.beating(ctx, s.queries.endSession, []any{w.key.String()}, ignored)
}

func (s *pgStore) sweep(ctx context.Context) error {
	return s.beating(ctx, s.queries.sweep, nil, ignored)
}

func ignored(pgx.Rows) error { return nil }

func (s *pgStore) timeline(ctx context.Context) (time.Duration, bool, error) {
	var us *int64
	err := s.pooled(ctx, s.queries.timeline, nil, func(rows pgx.Rows) error { return rows.Scan(&us) })
	return time.Duration(orZero(us)) * time.Microsecond, us != nil, err
}

func (s *pgStore) own(ctx context.Context, c claim, owner uuid.UUID) error {
	return s.pooled(ctx, s.queries.own, []any{c.name, int64(c.token), c.grantID.String(), owner.String()}, ignored)
}

func (s *pgStore) announce(ctx context.Context, names []string, slots []*int) error {
	return s.pooled(ctx, s.queries.announce, []any{names, slots}, ignored)
}

func (s *pgStore) announceBeating(ctx context.Context, names []string, slots []*int) error {
	return s.beating(ctx, s.queries.announce, []any{names, slots}, ignored)
}

func (s *pgStore) notify(ctx context.Context, channel, payload string) error {
	return s.pooled(ctx, s.queries.notify, []any{channel, payload}, ignored)
}

func (s *pgStore) watch(ctx context.Context, name string, lasting time.Duration) (infos []Info, channel string, err error) {
	err = s.pooled(ctx, s.queries.watch, []any{name, interval(lasting)}, func(rows pgx.Rows) error {
		i, err := scanInfo(rows, &channel, nil)
		infos = append(infos, i)
		return err
	})
	return infos, channel, err
}
