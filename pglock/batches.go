package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How many statements of a kind are under way before calls wait for each other.
const (
	acquiresWide = 1
	releasesWide = 1
	checksWide   = 2
	requestsWide = 4
)

// ending is what became of a lease that was released.
type ending struct {
	released bool
	handed   handed
}

func newPgStore(pool *pgxpool.Pool, q *queries, listen *pgx.ConnConfig) *pgStore {
	s := &pgStore{pool: pool, queries: q, ears: listen}
	s.acquires = &lane[ask, answer]{store: s, width: acquiresWide, alone: s.acquireAlone, many: s.acquireMany, after: s.acquireAfter,
		name: ask.name, fits: func(first, q ask) bool {
			return first.request.holder == q.request.holder && first.request.ttl+first.request.grace == q.request.ttl+q.request.grace
		}}
	s.requests = &lane[ask, answer]{store: s, width: requestsWide, alone: s.acquireAlone, many: s.acquireEach, after: s.acquireAlone,
		name: ask.name, fits: func(ask, ask) bool { return true }}
	s.releases = &lane[claim, ending]{store: s, width: releasesWide, alone: s.releaseQuietly, many: s.releaseMany, after: s.releaseQuietly,
		name: claim.lock, fits: func(claim, claim) bool { return true }}
	s.checks = &lane[claim, time.Duration]{store: s, width: checksWide, alone: s.checkAlone, many: s.checkMany, after: s.checkAlone,
		name: claim.lock, fits: func(claim, claim) bool { return true }}
	return s
}

func (s *pgStore) close() {
	s.acquires.close()
	s.requests.close()
	s.releases.close()
	s.checks.close()
}

// acquireMany grants the locks that are free and tells of the others who holds them. Requests that wait are not answered
// by that: they go on alone, to be queued.
func (s *pgStore) acquireMany(ctx context.Context, conn *pgx.Conn, qs []ask) (map[int]answer, error) {
	names, grantIDs, owners := make([]string, len(qs)), make([]string, len(qs)), make([]string, len(qs))
	for i, q := range qs {
		names[i], grantIDs[i], owners[i] = q.request.name, q.grantID.String(), q.request.owner.id.String()
	}
	first := qs[0]
	answers := make(map[int]answer, len(qs))
	err := s.query(ctx, conn, s.queries.acquireMany,
		[]any{names, grantIDs, owners, first.who.session.String(), first.request.holder, interval(first.request.ttl + first.request.grace)},
		func(rows pgx.Rows) error {
			var n, token, expiresAt, remaining int64
			var a answer
			var watched *bool
			if err := rows.Scan(&n, &a.granted, &token, &a.holder, &expiresAt, &remaining, &watched); err != nil {
				return err
			}
			a.token, a.expiresAt, a.remaining = Token(token), moment(&expiresAt), time.Duration(remaining)*time.Microsecond
			a.handed.watched = orZero(watched)
			if i := int(n) - 1; a.granted || !qs[i].request.wait {
				answers[i] = a
			}
			return nil
		})
	return answers, err
}

// acquireEach sends requests of any kind.
func (s *pgStore) acquireEach(ctx context.Context, conn *pgx.Conn, qs []ask) (map[int]answer, error) {
	n := len(qs)
	names, grantIDs, holders, ttls, modes, owners := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	metadata, limits, waits, nested, turns := make([]*string, n), make([]*int, n), make([]bool, n), make([]bool, n), make([]int, n)
	for i, q := range qs {
		r := q.request
		names[i], grantIDs[i], holders[i], ttls[i], modes[i] = r.name, q.grantID.String(), r.holder, interval(r.ttl+r.grace), string(r.mode)
		owners[i], limits[i], waits[i], nested[i], turns[i] = r.owner.id.String(), r.limit(), r.wait, r.owner.nested(), max(1, r.turns)
		if r.metadata != nil {
			text := string(r.metadata)
			metadata[i] = &text
		}
	}
	answers := make(map[int]answer, n)
	err := s.query(ctx, conn, s.queries.acquireEach,
		[]any{names, grantIDs, qs[0].who.session.String(), holders, ttls, metadata, modes, limits, waits, interval(qs[0].who.ttl), owners, nested, turns},
		func(rows pgx.Rows) error {
			var n int64
			a, err := scanAnswer(rows, nil, &n)
			answers[int(n)-1] = a
			return err
		})
	return answers, err
}

// releaseMany releases the leases whose locks nobody waits for. The others go alone, as each hands its lock over.
func (s *pgStore) releaseMany(ctx context.Context, conn *pgx.Conn, claims []claim) (map[int]ending, error) {
	names, tokens, grantIDs := columns(claims)
	ended := make(map[int]ending, len(claims))
	err := s.query(ctx, conn, s.queries.releaseMany, []any{names, tokens, grantIDs}, func(rows pgx.Rows) error {
		var n int64
		e := ending{released: true}
		err := rows.Scan(&n, &e.handed.watched)
		ended[int(n)-1] = e
		return err
	})
	return ended, err
}

// checkMany tells how long the leases still run that are held. The others go alone, to hear why not.
func (s *pgStore) checkMany(ctx context.Context, conn *pgx.Conn, claims []claim) (map[int]time.Duration, error) {
	names, tokens, grantIDs := columns(claims)
	left := make(map[int]time.Duration, len(claims))
	err := s.query(ctx, conn, s.queries.checkMany, []any{names, tokens, grantIDs}, func(rows pgx.Rows) error {
		var n, us int64
		err := rows.Scan(&n, &us)
		left[int(n)-1] = time.Duration(us) * time.Microsecond
		return err
	})
	return left, err
}

// acquireAfter is for requests that were not answered with many others. One that waits is queued together with others that are.
func (s *pgStore) acquireAfter(ctx context.Context, q ask) (answer, error) {
	if q.request.wait {
		return s.requests.do(ctx, q)
	}
	return s.acquireAlone(ctx, q)
}

func (s *pgStore) releaseQuietly(ctx context.Context, c claim) (e ending, err error) {
	e.released, e.handed, err = s.releaseAlone(ctx, c, nil)
	return e, err
}

func (s *pgStore) checkAlone(ctx context.Context, c claim) (time.Duration, error) {
	return s.remaining(ctx, s.queries.check, c)
}

func (q ask) name() string { return q.request.name }

func (c claim) lock() string { return c.name }
