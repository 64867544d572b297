package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// How many statements of a kind are under way before calls wait for each other.
const (
	acquiresWide = 1
	waitsWide    = 4
	releasesWide = 1
	checksWide   = 2
)

// ask is one request for a lock as it is sent.
type ask struct {
	who     who
	request request
	grantID uuid.UUID
	retry   bool
}

// ending is what became of a lease that was released.
type ending struct {
	released bool
	handed   handed
}

// remains is what became of a lease that was asked about: how long it runs, or why it is lost.
type remains struct {
	left time.Duration
	lost Reason
}

func (s *pgStore) makeLanes() {
	s.acquires = &lane[ask, answer]{store: s, width: acquiresWide, send: s.sendAcquires}
	s.waits = &lane[ask, answer]{store: s, width: waitsWide, send: s.sendAcquires}
	s.releases = &lane[claim, ending]{store: s, width: releasesWide, send: s.sendReleases}
	s.checks = &lane[claim, remains]{store: s, width: checksWide, send: s.sendChecks}
}

// sendAcquires asks for locks, with the function for one or the one for many, which does the same for each.
func (s *pgStore) sendAcquires(ctx context.Context, conn *pgx.Conn, qs []ask) ([]answer, error) {
	if len(qs) == 1 {
		var a answer
		q, r := qs[0], qs[0].request
		err := s.query(ctx, conn, s.queries.acquire,
			[]any{r.name, q.grantID.String(), q.who.key.String(), r.holder, interval(r.ttl + r.grace), r.metadataText(), q.retry, string(r.mode),
				r.limit(), r.wait, interval(q.who.ttl), r.owner.id.String(), r.owner.nested(), max(1, r.turns)},
			func(rows pgx.Rows) (err error) {
				a, err = scanAnswer(rows, nil)
				return err
			})
		return []answer{a}, err
	}
	n := len(qs)
	names, grantIDs, holders, ttls, modes, owners := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	metadata, limits, turns := make([]*string, n), make([]*int, n), make([]int, n)
	retries, waits, nested := make([]bool, n), make([]bool, n), make([]bool, n)
	for i, q := range qs {
		r := q.request
		names[i], grantIDs[i], holders[i], ttls[i], modes[i] = r.name, q.grantID.String(), r.holder, interval(r.ttl+r.grace), string(r.mode)
		owners[i], limits[i], turns[i], metadata[i] = r.owner.id.String(), r.limit(), max(1, r.turns), r.metadataText()
		retries[i], waits[i], nested[i] = q.retry, r.wait, r.owner.nested()
	}
	answers := make([]answer, n)
	err := s.query(ctx, conn, s.queries.acquireMany,
		[]any{names, grantIDs, qs[0].who.key.String(), holders, ttls, metadata, retries, modes, limits, waits, interval(qs[0].who.ttl), owners, nested, turns},
		func(rows pgx.Rows) error {
			var n int64
			a, err := scanAnswer(rows, nil, &n)
			if err == nil {
				answers[n-1] = a
			}
			return err
		})
	return answers, err
}

func (s *pgStore) sendReleases(ctx context.Context, conn *pgx.Conn, claims []claim) ([]ending, error) {
	endings := make([]ending, len(claims))
	scan := func(rows pgx.Rows) error {
		var n int64
		e, err := scanEnding(rows.Scan, nil, &n)
		if err == nil {
			endings[n-1] = e
		}
		return err
	}
	if len(claims) == 1 {
		return endings, s.query(ctx, conn, s.queries.release, claims[0].args(), scan)
	}
	names, tokens, grantIDs, slots := columns(claims)
	return endings, s.query(ctx, conn, s.queries.releaseMany, []any{names, tokens, grantIDs, slots}, scan)
}

func (s *pgStore) sendChecks(ctx context.Context, conn *pgx.Conn, claims []claim) ([]remains, error) {
	all := make([]remains, len(claims))
	names, tokens, grantIDs, slots := columns(claims)
	err := s.query(ctx, conn, s.queries.checkMany, []any{names, tokens, grantIDs, slots}, func(rows pgx.Rows) error {
		var n int64
		var reason *string
		var us *int64
		if err := rows.Scan(&n, &reason, &us); err != nil {
			return err
		}
		all[n-1] = remains{time.Duration(orZero(us)) * time.Microsecond, Reason(orZero(reason))}
		return nil
	})
	return all, err
}

// limit is the capacity for the server, NULL where the mode has none.
func (r request) limit() *int {
	if r.mode == ModeLimit {
		return &r.capacity
	}
	return nil
}

func (r request) metadataText() *string {
	if r.metadata == nil {
		return nil
	}
	text := string(r.metadata)
	return &text
}

// scanAnswer reads what the server says to one request, with others in columns before and after it.
func scanAnswer(rows pgx.Rows, last any, first ...any) (a answer, err error) {
	var token, firstToken, remaining, expiresAt, ticket *int64
	var slot, place *int
	var holder *string
	var isFirst, watched *bool
	if err := rows.Scan(append(first, &a.granted, &token, &firstToken, &slot, &remaining, &holder, &expiresAt, &ticket, &place, &isFirst,
		&a.handed.hints, &a.handed.slots, &watched, last)...); err != nil {
		return a, err
	}
	if a.granted && (token == nil || firstToken == nil) {
		return a, fmt.Errorf("the server granted the lock without a token")
	}
	a.token, a.firstToken, a.slot = Token(orZero(token)), Token(orZero(firstToken)), orZero(slot)
	a.holder, a.expiresAt = orZero(holder), moment(expiresAt)
	a.remaining = time.Duration(orZero(remaining)) * time.Microsecond
	a.ticket, a.place, a.first = orZero(ticket), orZero(place), orZero(isFirst)
	a.handed.watched = orZero(watched)
	return a, nil
}

// scanEnding reads what the server says to one release.
func scanEnding(scan func(...any) error, last any, first ...any) (e ending, err error) {
	var watched *bool
	err = scan(append(first, &e.released, &e.handed.hints, &e.handed.slots, &watched, last)...)
	e.handed.watched = orZero(watched)
	return e, err
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

func (c claim) args() []any { return []any{c.name, int64(c.token), c.grantID.String(), c.slot} }

func columns(claims []claim) (names []string, tokens []int64, grantIDs []string, slots []int) {
	for _, c := range claims {
		names, tokens = append(names, c.name), append(tokens, int64(c.token))
		grantIDs, slots = append(grantIDs, c.grantID.String()), append(slots, c.slot)
	}
	return names, tokens, grantIDs, slots
}
