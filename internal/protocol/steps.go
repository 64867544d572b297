package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Acquire requests locks, with the single or the array function, which do the same for each request. A subtree is
// requested alone.
func (q *Queries) Acquire(requests []Request, answers []Answer) Step {
	if len(requests) == 1 {
		a, sql := requests[0], q.acquire
		if a.Subtree {
			sql = q.acquireSubtree
		}
		return Step{SQL: sql, Args: []any{a.Name, id(a.GrantID), id(a.Session.Key), a.Holder,
			Interval(a.TTL + a.Grace), a.metadata(), a.Retry,
			a.Mode, a.capacity(), a.Wait, Interval(a.Session.TTL), id(a.Owner), a.Nested},
			Scan: func(rows pgx.Rows) error { return scanAnswer(rows, requests, answers) }}
	}
	n := len(requests)
	names, grantIDs, holders, ttls, modes, owners := make([]string, n), make([]string, n), make([]string,
		n), make([]string, n), make([]string, n), make([]string, n)
	metadata, capacities := make([]string, n), make([]int, n)
	retries, waits, nested := make([]bool, n), make([]bool, n), make([]bool, n)
	for i, a := range requests {
		names[i], grantIDs[i], holders[i], ttls[i], modes[i] = a.Name, a.GrantID.String(), a.Holder, Interval(a.TTL+
			a.Grace), a.Mode
		owners[i], capacities[i], metadata[i] = a.Owner.String(), a.Capacity, string(a.Metadata)
		retries[i], waits[i], nested[i] = a.Retry, a.Wait, a.Nested
	}
	session := requests[0].Session
	return Step{SQL: q.acquireMany, Args: []any{names, grantIDs, id(session.Key), holders, ttls, metadata, retries,
		modes, capacities, waits,
		Interval(session.TTL), owners, nested},
		Scan: func(rows pgx.Rows) error { return scanAnswer(rows, requests, answers) }}
}

func (a Request) capacity() *int {
	if a.Capacity == 0 {
		return nil
	}
	return &a.Capacity
}

func (a Request) metadata() *string {
	if a.Metadata == nil {
		return nil
	}
	text := string(a.Metadata)
	return &text
}

// more is what an answer says beyond the lock itself: what the caller cannot know otherwise.
type more struct {
	Slot      int       `json:"slot"`
	Holder    string    `json:"holder"`
	By        string    `json:"by"`
	ExpiresAt time.Time `json:"expires_at"`
	Remaining int64     `json:"remaining_us"`
	Ticket    int64     `json:"ticket"`
	Place     int       `json:"place"`
	First     bool      `json:"first"`
	Handed    struct {
		Hints []string `json:"hints"`
		Slots []int    `json:"slots"`
	} `json:"handed"`
	Watched bool `json:"watched"`
}

func readMore(text *string) (m more, err error) {
	if text != nil {
		if err := json.Unmarshal([]byte(*text), &m); err != nil {
			return m, fmt.Errorf("read the answer %q: %w", *text, err)
		}
	}
	return m, nil
}

func (m more) handed() Handed {
	return Handed{Hints: m.Handed.Hints, Slots: m.Handed.Slots, Watched: m.Watched}
}

// place says which call an answer belongs to: the n-th, or the only one.
func place(n *int64) int { return int(max(OrZero(n), 1)) - 1 }

// scanAnswer reads the server's answer to one request.
func scanAnswer(rows pgx.Rows, requests []Request, answers []Answer) error {
	var n, token *int64
	var granted bool
	var text *string
	if err := rows.Scan(&n, &granted, &token, &text); err != nil {
		return err
	}
	m, err := readMore(text)
	if err != nil {
		return err
	}
	if granted && token == nil {
		return errors.New("the server granted the lock without a token")
	}
	i := place(n)
	answers[i] = Answer{Granted: granted, Token: OrZero(token), Slot: m.Slot, Remaining: micros(m.Remaining),
		Holder: m.Holder, By: m.By, ExpiresAt: m.ExpiresAt.UTC(), Ticket: m.Ticket, Place: m.Place, First: m.First,
		Handed: m.handed(), Waited: answers[i].Waited}
	if granted {
		answers[i].Remaining = requests[i].TTL + requests[i].Grace
	}
	return nil
}

// Release ends leases, with the single or the array function, which do the same for each lease.
func (q *Queries) Release(claims []Claim, endings []Ending) Step {
	s := q.ReleaseAll(claims, endings)
	if len(claims) == 1 {
		s.SQL, s.Args = q.release, claims[0].args()
	}
	return s
}

// ReleaseAll ends leases, all of them or none, and waits only briefly for each row.
func (q *Queries) ReleaseAll(claims []Claim, endings []Ending) Step {
	return Step{SQL: q.releaseMany, Args: columns(claims), Scan: func(rows pgx.Rows) error {
		var n *int64
		var released bool
		var text *string
		if err := rows.Scan(&n, &released, &text); err != nil {
			return err
		}
		m, err := readMore(text)
		endings[place(n)] = Ending{released, m.handed()}
		return err
	}}
}

// HandOver hands a lock over.
func (q *Queries) HandOver(b Bequest, s *Succession) Step {
	return Step{SQL: q.handOver, Args: []any{b.Name, b.Token, id(b.GrantID), b.To, b.Look},
		Scan: func(rows pgx.Rows) error {
			var text *string
			if err := rows.Scan(&s.Outcome, &text); err != nil {
				return err
			}
			m, err := readMore(text)
			s.Handed = m.handed()
			return err
		}}
}

// Check asks what became of leases.
func (q *Queries) Check(claims []Claim, all []Remains) Step {
	return Step{SQL: q.checkMany, Args: columns(claims), Scan: func(rows pgx.Rows) error {
		var n int64
		var reason *string
		var us *int64
		if err := rows.Scan(&n, &reason, &us); err != nil {
			return err
		}
		all[n-1] = Remains{micros(OrZero(us)), OrZero(reason)}
		return nil
	}}
}

// RenewAll renews leases, each by its TTL, and waits for no row.
func (q *Queries) RenewAll(claims []Claim, verdicts map[Claim]Verdict) Step {
	lasting, noLonger := extensions(claims)
	return Step{SQL: q.renewAll, Args: append(columns(claims), lasting, noLonger), Scan: func(rows pgx.Rows) error {
		var n, remaining int64
		var expiresAt *int64
		var outcome string
		if err := rows.Scan(&n, &outcome, &expiresAt, &remaining); err != nil {
			return err
		}
		verdicts[claims[n-1]] = Verdict{outcome, micros(remaining), Moment(expiresAt)}
		return nil
	}}
}

// Look looks at the queue of the session, and searches circles from the tickets in nested.
func (q *Queries) Look(s Session, nested []int64, sightings map[int64]Sighting) Step {
	return Step{SQL: q.look, Args: []any{id(s.Key), s.Holder, Interval(s.TTL), nested},
		Scan: func(rows pgx.Rows) error {
			var ticket int64
			var remaining *int64
			var circle *string
			var seen Sighting
			if err := rows.Scan(&ticket, &seen.Ahead, &remaining, &circle, &seen.Served, &seen.Kept); err != nil {
				return err
			}
			seen.Remaining = micros(OrZero(remaining))
			if circle != nil {
				if err := json.Unmarshal([]byte(*circle), &seen.Circle); err != nil {
					return fmt.Errorf("read a circle of waiters: %w", err)
				}
			}
			sightings[ticket] = seen
			return nil
		}}
}

// Renew renews one lease, and waits at most so long for its row. A lost lease is an error, as from a fence.
func (q *Queries) Renew(c Claim, wait time.Duration, v *Verdict) Step {
	lasting, noLonger := extensions([]Claim{c})
	return Step{SQL: q.renew, Args: append(c.args(), Interval(wait), lasting, noLonger),
		Scan: func(rows pgx.Rows) error {
			var us int64
			var expiresAt *int64
			err := rows.Scan(&v.Outcome, &us, &expiresAt)
			v.Remaining, v.ExpiresAt = micros(us), Moment(expiresAt)
			switch {
			case err == nil && v.Outcome == Busy:
				return &pgconn.PgError{Severity: "ERROR", Code: "55P03", Message: "the row of the lock is locked"}
			case err == nil && v.Outcome != Renewed: // as a fence says it
				return &pgconn.PgError{Severity: "ERROR", Code: StateNotHolder, Message: "the lease is lost: " +
					v.Outcome, Detail: "reason=" + v.Outcome}
			}
			return err
		}}
}

// OwnTickets asks for the requests behind tickets of the session.
func (q *Queries) OwnTickets(s Session, tickets []int64, all *[]RequestID) Step {
	return Step{SQL: q.ownTickets, Args: []any{id(s.Key), tickets}, Scan: func(rows pgx.Rows) error {
		var r RequestID
		var id string
		err := rows.Scan(&r.Name, &id)
		if err == nil {
			r.GrantID, err = uuid.Parse(id)
		}
		*all = append(*all, r)
		return err
	}}
}

// TakeBack takes requests back, all of them or none; with spend, also those whose attempts may still be under way.
func (q *Queries) TakeBack(s Session, spend bool, requests []RequestID, backs []TakenBack) Step {
	names, grantIDs := make([]string, len(requests)), make([]string, len(requests))
	for i, r := range requests {
		names[i], grantIDs[i] = r.Name, r.GrantID.String()
	}
	return Step{SQL: q.giveUp, Args: []any{id(s.Key), names, grantIDs, spend}, Scan: func(rows pgx.Rows) error {
		var n int64
		var ended bool
		var place *int
		var token *int64
		var text *string
		if err := rows.Scan(&n, &ended, &place, &token, &text); err != nil {
			return err
		}
		m, err := readMore(text)
		backs[n-1] = TakenBack{Ended: ended, Place: OrZero(place), Token: OrZero(token), Holder: m.Holder,
			ExpiresAt: m.ExpiresAt.UTC(), Handed: m.handed()}
		return err
	}}
}

// Mark gives a sign of life of the session, with the version of this library. It also notes that the connection to the
// server process with this ID is that of the session's heartbeat; 0 notes nothing. marked is whether this connection is
// known as that; nil: somebody has locked the session's row, and nothing was done.
func (q *Queries) Mark(s Session, pid uint32, version string, marked **bool) Step {
	var process *int32
	if pid != 0 {
		id := int32(pid)
		process = &id
	}
	var holds *string
	if s.Holds > 0 {
		text := Interval(s.Holds)
		holds = &text
	}
	return Step{SQL: q.mark, Args: []any{id(s.Key), process, s.Holder, version, holds, s.Names},
		Scan: func(rows pgx.Rows) error {
			return rows.Scan(marked)
		}}
}

// EndSession ends the session, with all its tickets.
func (q *Queries) EndSession(s Session) Step {
	return Step{SQL: q.endSession, Args: []any{id(s.Key)}}
}

// Sweep removes some of what dead sessions and old requests have left in the tables. swept is false if somebody has
// done so within the time every: then it did nothing. more says that it may have left some.
func (q *Queries) Sweep(every time.Duration, swept, more *bool) Step {
	return Step{SQL: q.sweep, Args: []any{Interval(every)}, Scan: func(rows pgx.Rows) error {
		return rows.Scan(swept, more, nil)
	}}
}

// Timeline asks how long ago the server's timeline changed; nil if it never did, or cannot be seen.
func (q *Queries) Timeline(us **int64) Step {
	return Step{SQL: q.timeline, Scan: func(rows pgx.Rows) error { return rows.Scan(us) }}
}

// Announce notifies the new holders of a slot of these locks, and the watchers; told is the number of hints.
func (q *Queries) Announce(names []string, slots []*int, told *int64) Step {
	numbers := make([]int, len(slots))
	for i, slot := range slots {
		numbers[i] = -1
		if slot != nil {
			numbers[i] = *slot
		}
	}
	return Step{SQL: q.announce, Args: []any{names, numbers}, Scan: func(rows pgx.Rows) error {
		return rows.Scan(told, nil)
	}}
}

// AnnounceUnconfirmed is Announce for grants of which the client does not know that a standby has them: in the round
// trip of the releases that have made them, or if the answer was lost. Where a standby may be waited for it announces
// nothing: told is -1.
func (q *Queries) AnnounceUnconfirmed(names []string, slots []*int, told *int64) Step {
	s := q.Announce(names, slots, told)
	s.SQL = q.announceUnconfirmed
	return s
}

// Notify notifies a channel.
func (q *Queries) Notify(channel, payload string) Step {
	return Step{SQL: q.notify, Args: []any{channel, payload}}
}

// Moment is a time from the server, in UTC; zero if there is none.
func Moment(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return time.UnixMicro(*us).UTC()
}

// Timestamp is t as PostgreSQL reads it in every session: a TimeZone may have the name Z, and another meaning for it.
func Timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999999-07:00") }

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Interval is d as PostgreSQL reads it, in seconds, because version 14 takes no more than 2^31 microseconds.
func Interval(d time.Duration) string {
	return fmt.Sprintf("%d.%06d seconds", d/time.Second, d%time.Second/time.Microsecond)
}

// id is a UUID as every way of pgx to send arguments knows it, in binary where that way can, which spares the server
// its text form. An array of them would meet the application's codec for UUIDs: arrays travel as texts.
func id(u uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: u, Valid: true} }

// OrZero returns the value of a column, zero for NULL.
func OrZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (c Claim) args() []any { return []any{c.Name, c.Token, id(c.GrantID), c.Slot} }

// columns returns the claims as arguments of an array function.
func columns(claims []Claim) []any {
	n := len(claims)
	names, tokens, grantIDs, slots := make([]string, n), make([]int64, n), make([]string, n), make([]int, n)
	for i, c := range claims {
		names[i], tokens[i], grantIDs[i], slots[i] = c.Name, c.Token, c.GrantID.String(), c.Slot
	}
	return []any{names, tokens, grantIDs, slots}
}

// extensions are what the claims say of extensions, as the arguments of renew_leases; nil where they say nothing.
func extensions(claims []Claim) (lasting, noLonger []string) {
	for i, c := range claims {
		if c.Lasting == 0 && c.NoLonger == 0 {
			continue
		}
		if lasting == nil {
			lasting, noLonger = make([]string, len(claims)), make([]string, len(claims))
		}
		if c.Lasting > 0 {
			lasting[i] = Interval(c.Lasting)
		}
		if c.NoLonger != 0 {
			noLonger[i] = Timestamp(Moment(&c.NoLonger))
		}
	}
	return lasting, noLonger
}
