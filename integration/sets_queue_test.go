package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// mixture is requests of every kind for one lock that somebody holds, most of them plain, and one that is made twice.
func (m *many) mixture(name string) (requests []protocol.Request) {
	owner := uuid.New()
	for n, change := range []func(r *protocol.Request){
		nil, nil,
		func(r *protocol.Request) { r.Metadata = json.RawMessage(`{"a": 1}`) },
		func(r *protocol.Request) { r.RequestID = requests[0].RequestID }, // again, without saying so
		func(r *protocol.Request) { r.Wait = false },
		func(r *protocol.Request) { r.Mode = "shared" },
		nil,
		func(r *protocol.Request) { r.Mode, r.Capacity = "limit", 3 },
		func(r *protocol.Request) { r.Retry = true },
		func(r *protocol.Request) { r.Owner, r.Nested = owner, true },
		func(r *protocol.Request) { r.TTL, r.Grace = time.Hour, time.Second },
		nil,
	} {
		r := m.request(name, true)
		r.Holder = fmt.Sprint("p", n)
		if change != nil {
			change(&r)
		}
		requests = append(requests, r)
	}
	return requests
}

// waitersOf is the queue of a lock, in its order, with the request that each ticket is for.
func (m *many) waitersOf(t *testing.T, name string, requests []protocol.Request) string {
	t.Helper()
	rows := one[string](t, m.peer, `SELECT coalesce(string_agg(concat_ws(' ', grant_id, mode, capacity, nested, holder, ttl, metadata),
		E'\n' ORDER BY ticket), '') FROM pglock.waiters WHERE name = $1`, name)
	for n, r := range requests {
		rows = strings.ReplaceAll(rows, r.GrantID.String(), fmt.Sprint("#", n))
	}
	return rows
}

// I9, I12: requests that queue together for one lock get the answers and the places that each gets alone.
func TestI9_I12_RequestsThatQueueTogetherGetWhatEachGetsAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	other, m, alone := newPeer(t, db.URL()), newMany(t, db.URL()), newMany(t, db.URL())
	for how, hold := range map[string]func(name string){
		"held":    func(name string) { other.mustAcquire(t, name, time.Hour) },
		"readers": func(name string) { other.mustAsk(t, name, "shared") },
		"run out": func(name string) {
			other.mustAcquire(t, name, time.Hour)
			other.mustEnqueue(t, name, "exclusive", nil)
			endNow(t, other, name) // the first of the queue is granted it
		},
		"free": func(name string) { freed(t, other, name) },
		"new":  func(string) {},
	} {
		t.Run(how, func(t *testing.T) {
			hold("together " + how)
			hold("alone " + how)
			together, each := m.mixture("together "+how), alone.mixture("alone "+how)
			answers := must.Get(m.acquire(t, together))(t)
			var last int64
			for n := range each {
				wants := must.Get(alone.acquire(t, each[n:n+1]))(t)
				got, want := answers[n], wants[0]
				if got.Granted != want.Granted || (got.Ticket == 0) != (want.Ticket == 0) || got.Place != want.Place ||
					got.First != want.First || got.Holder != want.Holder || got.Slot != want.Slot ||
					(got.Remaining > 0) != (want.Remaining > 0) ||
					fmt.Sprint(got.Handed.Watched, len(got.Handed.Hints), len(got.Handed.Slots)) !=
						fmt.Sprint(want.Handed.Watched, len(want.Handed.Hints), len(want.Handed.Slots)) {
					t.Errorf("request %d together: %+v\nalone: %+v", n, got, want)
				}
				switch {
				case n == 3 && got.Ticket != answers[0].Ticket:
					t.Errorf("the same grant ID got ticket %d, then %d", answers[0].Ticket, got.Ticket)
				case n != 3 && got.Ticket != 0 && got.Ticket <= last:
					t.Errorf("I9: request %d got ticket %d after %d", n, got.Ticket, last)
				case n != 3:
					last = max(last, got.Ticket)
				}
			}
			got, want := m.waitersOf(t, "together "+how, together), alone.waitersOf(t, "alone "+how, each)
			if got != want {
				t.Errorf("the queue of those that came together:\n%s\nof those that came alone:\n%s", got, want)
			}
		})
	}
}

// I11: one request that is refused refuses all that queue with it, wherever it stands.
func TestI11_ARequestThatIsRefusedRefusesThoseThatQueueWithIt(t *testing.T) {
	db := pgtest.Parallel(t)
	other, m := newPeer(t, db.URL()), newMany(t, db.URL())
	other.mustAcquire(t, "x", time.Hour)
	other.mustAcquire(t, "elsewhere", time.Hour)
	used, spent := m.request("elsewhere", true), m.request("x", true)
	must.Get(m.acquire(t, []protocol.Request{used}))(t)
	m.exec(t, `SELECT pglock.give_up($1::text::uuid, '{x}', ARRAY[$2::text::uuid], true)`, m.key.String(),
		spent.GrantID.String())
	owner := uuid.New()
	long := json.RawMessage(`"` + strings.Repeat("x", 17000) + `"`)
	other.exec(t, `UPDATE pglock.locks SET owner_id = $1::text::uuid WHERE name = 'x'`, owner.String())
	for what, tc := range map[string]struct {
		spoil func(r *protocol.Request)
		state string
	}{
		"a grant ID in use for another lock": {func(r *protocol.Request) { r.GrantID = used.GrantID }, "22023"},
		"a grant ID that was given up":       {func(r *protocol.Request) { r.GrantID = spent.GrantID }, "LK008"},
		"an owner that holds the lock":       {func(r *protocol.Request) { r.Owner, r.Nested = owner, true }, "LK004"},
		"metadata that are too long":         {func(r *protocol.Request) { r.Metadata = long }, "22023"},
		"a TTL that is too long":             {func(r *protocol.Request) { r.TTL = 48 * time.Hour }, "22023"},
		"a holder without a label":           {func(r *protocol.Request) { r.Holder = "" }, "22023"},
	} {
		for at := range 4 {
			var requests []protocol.Request
			for range 4 {
				requests = append(requests, m.request("x", true))
			}
			tc.spoil(&requests[at])
			if _, err := m.acquire(t, requests); state(err) != tc.state {
				t.Errorf("I11: %s, as request %d of 4: %v; want %s", what, at+1, err, tc.state)
			}
			if n := one[int](t, m.peer, `SELECT count(*) FROM pglock.waiters WHERE name = 'x'`); n != 0 {
				t.Errorf("I11: %s, as request %d of 4: %d tickets are left", what, at+1, n)
			}
		}
	}
}
