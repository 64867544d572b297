package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// handed is what a call answers that served the queue: payloads for its own session, and slots for announce.
type handed struct {
	hints []string
	slots []int
}

func (p *peer) handing(t *testing.T, sql string, args ...any) (h handed) {
	t.Helper()
	if err := p.QueryRow(t.Context(),
		`SELECT ARRAY(SELECT json_array_elements_text(h -> 'hints')), ARRAY(SELECT json_array_elements_text(h -> 'slots')::int)
		FROM (`+sql+`) AS a (h)`, args...).Scan(&h.hints, &h.slots); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return h
}

// listen begins to hear the hints of the peer's session.
func (p *peer) listen(t *testing.T) {
	t.Helper()
	p.exec(t, `LISTEN `+p.channel())
}

func (p *peer) hear(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := p.WaitForNotification(ctx)
	if err != nil {
		t.Fatalf("waited in vain for a hint: %v", err)
	}
	return n.Payload
}

// wantHint compares a payload with the grant that stands: a digest of the rest and the grant's ID, then ticket, token,
// slot, and what is left.
func wantHint(t *testing.T, look *peer, payload string, g grant, ticket int64) {
	t.Helper()
	digest, rest, _ := strings.Cut(payload, " ")
	fields := strings.Fields(rest)
	if len(fields) != 4 {
		t.Fatalf("the hint is %q", payload)
	}
	if sum := sha256.Sum256(append([]byte(rest), g.id[:]...)); digest != hex.EncodeToString(sum[:]) {
		t.Errorf("the hint %q has not the digest %x", payload, sum)
	}
	if got, want := strings.Join(fields[:3], " "), fmt.Sprint(ticket, grantOf(t, look, g.name, g.id), 0); got != want {
		t.Errorf("the hint tells ticket, token and slot %q, want %q", got, want)
	}
	if us, err := strconv.Atoi(fields[3]); err != nil || us <= 0 || us > 60_000_000 {
		t.Errorf("the hint says that %q is left", fields[3])
	}
}

// Every way in which a waiter comes to its grant tells it: through announce, or in the answer of who serves it where
// that is its own session.
func TestAWaiterIsToldOfItsGrant(t *testing.T) {
	db := pgtest.Parallel(t)
	const release = `SELECT more -> 'handed' FROM pglock.release_lease($1, $2, $3, $4)`
	dead := func(t *testing.T, p *peer, name string) { // a session before ours that has died
		q := newHastyPeer(t, db.URL())
		q.mustEnqueue(t, name, "exclusive", nil)
		p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`,
			q.session().String())
	}
	mode := func(mode string) func(t *testing.T, p *peer, name string) (grant, int) {
		return func(t *testing.T, p *peer, name string) (grant, int) {
			g := grant{name: name, id: uuid.New()}
			var slot int
			if err := p.QueryRow(t.Context(),
				`SELECT granted, token, coalesce((more ->> 'slot')::int, 0) FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min', p_mode => $4)`,
				name, g.id.String(), p.key.String(), mode).Scan(&g.granted, &g.token, &slot); err != nil || !g.granted {
				t.Fatal(g, err)
			}
			return g, slot
		}
	}
	nobody := func(*testing.T, *peer, string) {}
	for what, way := range map[string]struct {
		hold   func(t *testing.T, p *peer, name string) (grant, int)
		before func(t *testing.T, p *peer, name string) // who is queued before
		end    func(t *testing.T, p *peer, g grant, slot int) handed
	}{
		"released": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, slot int) handed {
			return p.handing(t, release, g.name, g.token, g.id.String(), slot)
		}},
		"released after a dead waiter": {mode("exclusive"), dead,
			func(t *testing.T, p *peer, g grant, slot int) handed {
				return p.handing(t, release, g.name, g.token, g.id.String(), slot)
			}},
		"released by a reader": {mode("shared"), nobody, func(t *testing.T, p *peer, g grant, slot int) handed {
			return p.handing(t, release, g.name, g.token, g.id.String(), slot)
		}},
		"released in a transaction that does not wait for the disk": {mode("exclusive"), nobody,
			func(t *testing.T, p *peer, g grant, slot int) handed {
				p.exec(t, `BEGIN; SET LOCAL synchronous_commit = off`)
				defer p.exec(t, `COMMIT`)
				return p.handing(t, release, g.name, g.token, g.id.String(), slot)
			}},
		"found run out by another request": {mode("exclusive"), nobody,
			func(t *testing.T, p *peer, g grant, _ int) handed {
				endNow(t, p, g.name)
				return p.handing(t,
					`SELECT more -> 'handed' FROM pglock.acquire_lease($1, gen_random_uuid(), $2, 'peer', '1 min', p_wait => true)`, g.name, p.key.String())
			}},
		"broken": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, _ int) handed {
			return p.handing(t, `SELECT json_build_object('slots', handed) FROM pglock.break_lock($1, 'test', 'test')`,
				g.name)
		}},
		"given up": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, _ int) handed {
			return p.handing(t, `SELECT more -> 'handed' FROM pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`,
				p.key.String(), g.name, g.id.String())
		}},
	} {
		for _, same := range []bool{false, true} {
			t.Run(what+map[bool]string{true: "/its own session", false: "/another"}[same], func(t *testing.T) {
				look, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
				releaser := waiter
				if !same {
					releaser = newHastyPeer(t, db.URL())
				}
				waiter.listen(t)
				g, slot := way.hold(t, releaser, t.Name())
				way.before(t, look, t.Name())
				waits := waiter.mustEnqueue(t, t.Name(), "exclusive", nil)
				h := way.end(t, releaser, g, slot)
				if len(h.hints)+len(h.slots) != 1 || (same && what != "broken") != (len(h.hints) == 1) {
					t.Fatalf("the answer has %+v", h)
				}
				if len(h.hints) == 1 {
					wantHint(t, look, h.hints[0], waits.grant, waits.ticket)
					return
				}
				look.exec(t, `SELECT pglock.announce(ARRAY[$1], $2)`, t.Name(), h.slots)
				wantHint(t, look, waiter.hear(t), waits.grant, waits.ticket)
			})
		}
	}
}

// An operator who names a token breaks the lease with that token, and no other: whoever holds the lock now keeps it.
func TestI10_ABreakThatNamesATokenTakesThatLeaseAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	const by = `SELECT FROM pglock.break_lock('x', 'test', 'test', $1)`
	old := p.mustAcquire(t, "x", time.Minute)
	p.mustReleaseBy(t, "release_lease", old)
	now := p.mustAcquire(t, "x", time.Minute)
	for _, token := range []int64{old.token, now.token - 1, now.token + 1} {
		if _, err := p.Exec(t.Context(), by, token); state(err) != "LK006" || !isHeld(t, p, now) {
			t.Errorf("I10: broken by token %d, which is not %d: %v", token, now.token, err)
		}
	}
	var token, newToken int64
	if err := p.QueryRow(t.Context(), `SELECT token, new_token FROM pglock.break_lock('x', 'test', 'test', $1)`,
		now.token).Scan(&token, &newToken); err != nil ||
		token != now.token || newToken <= now.token || isHeld(t, p, now) {
		t.Errorf("I10: broken by its token: token %d, new token %d, %v", token, newToken, err)
	}
}

// What a refusal says of a token is what became of its lease.
func TestALostLeaseSaysWhyItIsLost(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for want, end := range map[string]func(g grant){
		"released":   func(g grant) { p.mustReleaseBy(t, "release_lease", g) },
		"broken":     func(g grant) { p.exec(t, breakSQL, g.name) },
		"expired":    func(g grant) { endNow(t, p, g.name) },
		"taken over": func(g grant) { endNow(t, p, g.name); p.mustAcquire(t, g.name, time.Minute) },
	} {
		g := p.mustAcquire(t, want, time.Minute)
		end(g)
		if got := one[string](t, p,
			`SELECT coalesce(reason, 'held') FROM pglock.check_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`, want, g.token, g.id.String()); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
}
