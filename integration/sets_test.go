package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// many sends statements for many as a client does, with arguments of its own.
type many struct {
	*peer
	*protocol.Queries
	protocol.Executor
}

func newMany(t *testing.T, url string) *many {
	return &many{peer: newPeer(t, url), Queries: protocol.NewQueries("pglock")}
}

func (m *many) request(name string, wait bool) protocol.Request {
	return protocol.Request{RequestID: protocol.RequestID{Name: name, GrantID: uuid.New()}, Holder: "p",
		TTL: time.Minute, Mode: "exclusive",
		Session: protocol.Session{Key: m.key, Holder: "p", TTL: time.Minute}, Owner: m.key, Wait: wait}
}

// acquire asks for the locks in one statement. It fails the test unless each request has one answer.
func (m *many) acquire(t *testing.T, requests []protocol.Request) ([]protocol.Answer, error) {
	answers, unanswered := make([]protocol.Answer, len(requests)), int64(-1)
	for i := range answers {
		answers[i].Token = unanswered
	}
	err := m.Run(t.Context(), m.Conn, m.Acquire(requests, answers))
	if i := slices.IndexFunc(answers, func(a protocol.Answer) bool {
		return a.Token == unanswered
	}); err == nil && i >= 0 {
		t.Errorf("no answer for %q", requests[i].Name)
	}
	return answers, err
}

// release ends the leases in one statement. It fails the test unless each was held until then.
func (m *many) release(t *testing.T, claims []protocol.Claim) {
	endings := make([]protocol.Ending, len(claims))
	err := m.Run(t.Context(), m.Conn, m.ReleaseAll(claims, endings))
	for state(err) == "55P03" { // one for many does not wait for long; nothing was changed
		err = m.Run(t.Context(), m.Conn, m.ReleaseAll(claims, endings))
	}
	if err != nil {
		t.Error(err)
		return
	}
	for i, e := range endings {
		if !e.Released {
			t.Errorf("%q was not released", claims[i].Name)
		}
	}
}

func claimOf(r protocol.Request, a protocol.Answer) protocol.Claim {
	return protocol.Claim{Name: r.Name, GrantID: r.GrantID, Token: a.Token}
}

// ready makes free locks that were used before: their names begin with a word, in the byte order of their numbers.
func (m *many) ready(t *testing.T, word string, n int) (names []string) {
	requests := make([]protocol.Request, n)
	for i := range requests {
		names = append(names, fmt.Sprintf("%s%04d", word, i))
		requests[i] = m.request(names[i], false)
	}
	answers := must.Get(m.acquire(t, requests))(t)
	claims := make([]protocol.Claim, n)
	for i, a := range answers {
		claims[i] = claimOf(requests[i], a)
	}
	m.release(t, claims)
	return names
}

// I1, I2: statements for many, with the same names in other sets, give each lock to one at a time, with rising tokens.
// They neither fail nor leave a request without an answer.
func TestI1_I2_StatementsForManyThatCrossGrantEachLockOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	names := newMany(t, db.URL()).ready(t, "n", 12)
	var mu sync.Mutex
	held, last, grants := map[string]bool{}, map[string]int64{}, 0
	work := pgtest.Group(t)
	for range 4 {
		m := newMany(t, db.URL())
		work.Go(func() {
			for range 80 {
				var requests []protocol.Request
				for _, i := range rand.Perm(len(names))[:1+rand.N(len(names))] {
					requests = append(requests, m.request(names[i], false))
				}
				answers, err := m.acquire(t, requests)
				if err != nil {
					t.Error(err)
					return
				}
				var claims []protocol.Claim
				mu.Lock()
				for i, a := range answers {
					if name := requests[i].Name; a.Granted {
						if held[name] || a.Token <= last[name] {
							t.Errorf("%q was granted with token %d while held: %v; the last token was %d", name,
								a.Token, held[name], last[name])
						}
						held[name], last[name] = true, a.Token
						claims = append(claims, claimOf(requests[i], a))
					}
				}
				grants += len(claims)
				for _, c := range claims {
					held[c.Name] = false // from here on it may be granted again
				}
				mu.Unlock()
				if len(claims) > 0 {
					m.release(t, claims)
				}
			}
		})
	}
	work.Wait()
	if grants < 100 {
		t.Errorf("%d grants show nothing", grants)
	}
}

// A row that somebody changes while a statement for many is under way costs that statement nothing: each request has
// its answer, what is free is granted, and what is held is released.
func TestAStatementForManyWhoseLocksChangeAnswersEachRequest(t *testing.T) {
	db := pgtest.Parallel(t)
	m := newMany(t, db.URL())
	names := m.ready(t, "n", 150)
	last := names[len(names)-1] // it is reached long after the statement has begun
	other, third := newMany(t, db.URL()), newMany(t, db.URL())
	other.exec(t, "SET synchronous_commit = off")
	stop, changes := make(chan struct{}), 0
	work := pgtest.Group(t)
	work.Go(func() {
		for ; ; changes++ {
			select {
			case <-stop:
				return
			default:
			}
			// as by somebody who watches
			other.exec(t, "UPDATE pglock.locks SET watched_until = NULL WHERE name = $1", last)
		}
	})
	for range rounds(30) {
		requests := make([]protocol.Request, len(names))
		for i, name := range names {
			requests[i] = m.request(name, false)
		}
		answers, err := m.acquire(t, requests)
		if err != nil {
			t.Error(err)
			break
		}
		var claims []protocol.Claim
		for i, a := range answers {
			if a.Granted {
				claims = append(claims, claimOf(requests[i], a))
			} else if requests[i].Name != last {
				t.Errorf("%q is free and was not granted", requests[i].Name)
			}
		}
		if len(claims) < len(names)-1 {
			break // the release before this has failed
		}
		renewing, renewed := make(chan struct{}), make(chan struct{})
		pgtest.Group(t).Go(func() { // the row of the last lease, all the time
			defer close(renewed)
			for c := claims[len(claims)-1:]; ; {
				select {
				case <-renewing:
					return
				default:
				}
				if err := third.Run(t.Context(), third.Conn,
					third.RenewAll(c, map[protocol.Claim]protocol.Verdict{})); err != nil {
					t.Error(err)
					return
				}
			}
		})
		m.release(t, claims)
		close(renewing)
		<-renewed
	}
	close(stop)
	work.Wait()
	if changes < 10 {
		t.Errorf("%d changes show nothing", changes)
	}
}

// I8: whoever has queued before the statement for many ends the lease is served by it, also if that statement began
// before.
func TestI8_AStatementThatEndsManySeesWhoeverHasQueued(t *testing.T) {
	db := pgtest.Parallel(t)
	m, waiter, look := newMany(t, db.URL()), newMany(t, db.URL()), newPeer(t, db.URL())
	names := m.ready(t, "n", 200)
	last := names[len(names)-1]
	served := 0
	for round := range 40 {
		requests := make([]protocol.Request, len(names))
		for i, name := range names {
			requests[i] = m.request(name, false)
		}
		answers, err := m.acquire(t, requests)
		if err != nil {
			t.Fatal(err)
		}
		claims := make([]protocol.Claim, len(names))
		for i, a := range answers {
			claims[i] = claimOf(requests[i], a)
		}
		wait := []protocol.Request{waiter.request(last, true)}
		var queued []protocol.Answer
		work := pgtest.Group(t)
		work.Go(func() {
			time.Sleep(time.Duration(round%20) * 250 * time.Microsecond) // somewhere within the release
			var err error
			for queued == nil || !queued[0].Granted && queued[0].Ticket == 0 { // it became free meanwhile: ask again
				if queued, err = waiter.acquire(t, wait); err != nil {
					t.Error(err)
					return
				}
			}
		})
		if round%4 == 0 {
			work.Wait() // it has queued before
		}
		m.release(t, claims)
		work.Wait()
		var owner uuid.UUID
		var token int64
		if err := look.QueryRow(t.Context(),
			`SELECT grant_id, token FROM pglock.locks WHERE name = $1 AND slot = 0 AND expires_at > '-infinity'`,
			last).Scan(&owner, &token); err != nil || owner != wait[0].GrantID {
			t.Fatalf("round %d: the waiter got %+v; the lock is held by %v, %v", round, queued, owner, err)
		}
		if !queued[0].Granted {
			served++
		}
		waiter.release(t, []protocol.Claim{{Name: last, GrantID: owner, Token: token}})
	}
	if served < 10 {
		t.Errorf("%d of 40 waiters were served, want at least those that had surely queued before", served)
	}
}

// What cannot be granted at once goes first: whoever waits has locked no name that comes after the one it waits for.
func TestAStatementForManyThatWaitsHasLockedNothingElse(t *testing.T) {
	db := pgtest.Parallel(t)
	m, gate, look := newMany(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	names := m.ready(t, "n", 3)
	patientCalls(t, look)
	gate.exec(t, "BEGIN")
	gate.exec(t, "SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE", names[1])
	var answers []protocol.Answer
	done := make(chan error, 1)
	pgtest.Group(t).Go(func() {
		var err error
		answers, err = m.acquire(t, []protocol.Request{m.request(names[0], true), m.request(names[1], true),
			m.request(names[2], true)})
		done <- err
	})
	m.awaitBlocked(t, look)
	for _, name := range names {
		n := one[int](t, look, "SELECT count(*) FROM (SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE SKIP "+
			"LOCKED) l", name)
		if n == 0 != (name == names[1]) {
			t.Errorf("%q: %d rows can be locked", name, n)
		}
	}
	gate.exec(t, "ROLLBACK")
	must.Note(t, <-done)
	if a := answers; !a[0].Granted || a[1].Granted || a[1].Holder != "" || !a[2].Granted {
		t.Errorf("answers %+v: want the first and the last one granted, and the other free", a)
	}
}

// A statement for many that others disturb twice gives up instead of waiting out of order: two that waited so could
// wait for each other. The first wait, for the last name, is in order. Meanwhile somebody takes the first name, which
// was free.
func TestI25_AStatementForManyDoesNotWaitForWhatItHasPassed(t *testing.T) {
	t.Parallel()
	for what, call := range map[string]func(t *testing.T, m *many, names []string) func() error{
		"acquire": func(t *testing.T, m *many, names []string) func() error {
			requests := []protocol.Request{m.request(names[0], true), m.request(names[1], true)}
			return func() error { _, err := m.acquire(t, requests); return err }
		},
		"release": func(t *testing.T, m *many, names []string) func() error {
			requests := []protocol.Request{m.request(names[0], false), m.request(names[1], false)}
			answers := must.Get(m.acquire(t, requests))(t)
			claims := []protocol.Claim{claimOf(requests[0], answers[0]), claimOf(requests[1], answers[1])}
			return func() error {
				return m.Run(t.Context(), m.Conn, m.ReleaseAll(claims, make([]protocol.Ending, 2)))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Parallel(t)
			m, first, last, look := newMany(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t,
				db.URL())
			names := m.ready(t, "n", 2)
			send := call(t, m, names)
			patientCalls(t, look)
			const take = "SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE"
			last.exec(t, "BEGIN")
			last.exec(t, take, names[1])
			done := make(chan error, 1)
			pgtest.Group(t).Go(func() { done <- send() })
			m.awaitBlocked(t, look)
			before := one[string](t, look, "SELECT string_agg(l::text, ' ' ORDER BY l.name) FROM pglock.locks l")
			first.exec(t, "BEGIN")
			first.exec(t, take, names[0])
			last.exec(t, "ROLLBACK")
			if err := <-done; state(err) != "55P03" || !strings.Contains(err.Error(), "its turn has passed") {
				t.Errorf("%v, want that it gives up", err)
			}
			first.exec(t, "ROLLBACK")
			if now := one[string](t, look,
				"SELECT string_agg(l::text, ' ' ORDER BY l.name) FROM pglock.locks l"); now != before {
				t.Errorf("it has changed\n%s to\n%s", before, now)
			}
		})
	}
}

// Places are counted up to 100. A statement that has told one so far back does not count for the next one of the same
// lock, but for a request that had its place before, and for another lock.
func TestAStatementForManyTellsEachItsPlace(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, m := newPeer(t, db.URL()), newMany(t, db.URL())
	holder.mustAcquire(t, "a", time.Hour)
	holder.mustAcquire(t, "b", time.Hour)
	var requests []protocol.Request
	var want []int
	ask := func(name string, place int) {
		requests, want = append(requests, m.request(name, true)), append(want, min(place, 100))
	}
	check := func() {
		t.Helper()
		answers := must.Get(m.acquire(t, requests))(t)
		for i, a := range answers {
			if a.Place != want[i] || a.Ticket == 0 {
				t.Errorf("request %d, for %q: ticket %d in place %d, want %d", i, requests[i].Name, a.Ticket, a.Place,
					want[i])
			}
		}
	}
	for i := range 30 {
		ask("a", i+1)
	}
	check()
	again := requests[10]
	again.Retry = true
	requests, want = nil, nil
	for i := range 100 {
		ask("a", 31+i)
	}
	check()
	requests, want = []protocol.Request{again}, []int{11}
	ask("a", 131)
	for i := range 3 {
		ask("b", i+1)
	}
	check()
}
