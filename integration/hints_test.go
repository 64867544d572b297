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

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// handed is what a call answers that served the queue: payloads for its own session, and slots for announce.
type handed struct {
	hints []string
	slots []int
}

func (p *peer) handing(t *testing.T, sql string, args ...any) (h handed) {
	t.Helper()
	if err := p.QueryRow(t.Context(), `SELECT ARRAY(SELECT json_array_elements_text(h -> 'hints')), ARRAY(SELECT json_array_elements_text(h -> 'slots')::int)
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

// wantHint compares a payload with the grant that stands: a digest of the rest and the grant's ID, then ticket, token, slot, what
// is left, and the first token.
func wantHint(t *testing.T, look *peer, payload string, b block, turns int) {
	t.Helper()
	digest, rest, _ := strings.Cut(payload, " ")
	fields := strings.Fields(rest)
	if len(fields) != 5 {
		t.Fatalf("the hint is %q", payload)
	}
	if sum := sha256.Sum256(append([]byte(rest), b.id[:]...)); digest != hex.EncodeToString(sum[:]) {
		t.Errorf("the hint %q has not the digest %x", payload, sum)
	}
	token := grantOf(t, look, b.name, b.id)
	if got, want := fields[0]+" "+fields[1]+" "+fields[2]+" "+fields[4], fmt.Sprint(b.ticket, token, 0, token-int64(turns)+1); got != want {
		t.Errorf("the hint tells ticket, token, slot and first token %q, want %q", got, want)
	}
	if us, err := strconv.Atoi(fields[3]); err != nil || us <= 0 || us > 60_000_000 {
		t.Errorf("the hint says that %q is left", fields[3])
	}
	if got := one[int64](t, look, `SELECT coalesce(first_token, token) FROM pglock.locks WHERE name = $1 AND slot = 0`, b.name); got != token-int64(turns)+1 {
		t.Errorf("the row's block begins with %d, of %d tokens to %d", got, turns, token)
	}
}

// Every way in which a waiter comes to its grant tells it of its whole block: through announce, or in the
// answer of who serves it where that is its own session.
func TestAWaiterIsToldOfAllTokensOfItsGrant(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	const release = `SELECT more -> 'handed' FROM pglock.release_lease($1, $2, $3, $4)`
	dead := func(t *testing.T, p *peer, name string) { // a session before ours that has died
		q := newHastyPeer(t, db.URL())
		q.mustEnqueue(t, name, "exclusive", nil)
		p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`, q.session().String())
	}
	mode := func(mode string) func(t *testing.T, p *peer, name string) (grant, int) {
		return func(t *testing.T, p *peer, name string) (grant, int) {
			g := grant{name: name, id: uuid.New()}
			var slot int
			if err := p.QueryRow(t.Context(), `SELECT granted, token, coalesce((more ->> 'slot')::int, 0) FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min', p_mode => $4)`,
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
		"released after a dead waiter": {mode("exclusive"), dead, func(t *testing.T, p *peer, g grant, slot int) handed {
			return p.handing(t, release, g.name, g.token, g.id.String(), slot)
		}},
		"released by a reader": {mode("shared"), nobody, func(t *testing.T, p *peer, g grant, slot int) handed {
			return p.handing(t, release, g.name, g.token, g.id.String(), slot)
		}},
		"released in a transaction that does not wait for the disk": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, slot int) handed {
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = off`)
			defer p.exec(t, `COMMIT`)
			return p.handing(t, release, g.name, g.token, g.id.String(), slot)
		}},
		"found run out by another request": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, _ int) handed {
			endNow(t, p, g.name)
			return p.handing(t, `SELECT more -> 'handed' FROM pglock.acquire_lease($1, gen_random_uuid(), $2, 'peer', '1 min', p_wait => true)`, g.name, p.key.String())
		}},
		"broken": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, _ int) handed {
			return p.handing(t, `SELECT json_build_object('slots', handed) FROM pglock.break_lock($1, 'test', 'test')`, g.name)
		}},
		"given up": {mode("exclusive"), nobody, func(t *testing.T, p *peer, g grant, _ int) handed {
			return p.handing(t, `SELECT more -> 'handed' FROM pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, p.key.String(), g.name, g.id.String())
		}},
	} {
		for _, turns := range []int{8, 1} {
			for _, same := range []bool{false, true} {
				name := what + "/" + strconv.Itoa(turns) + map[bool]string{true: "/its own session", false: "/another"}[same]
				t.Run(name, func(t *testing.T) {
					look, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
					releaser := waiter
					if !same {
						releaser = newHastyPeer(t, db.URL())
					}
					waiter.listen(t)
					// A block of an earlier grant is nobody's business.
					look.mustReleaseBy(t, "release_lease", alone(t, look, t.Name(), 8).grant)
					g, slot := way.hold(t, releaser, t.Name())
					way.before(t, look, t.Name())
					b, err := waiter.askBlock(t.Context(), t.Name(), uuid.New(), turns, false)
					if err != nil || b.ticket == 0 {
						t.Fatal(b, err)
					}
					h := way.end(t, releaser, g, slot)
					if len(h.hints)+len(h.slots) != 1 || (same && what != "broken") != (len(h.hints) == 1) {
						t.Fatalf("the answer has %+v", h)
					}
					if len(h.hints) == 1 {
						wantHint(t, look, h.hints[0], b, turns)
						return
					}
					look.exec(t, `SELECT pglock.announce(ARRAY[$1], $2)`, t.Name(), h.slots)
					wantHint(t, look, waiter.hear(t), b, turns)
				})
			}
		}
	}
}

// Any token of a block speaks for its lease, with the right grant ID and no other; those beside it do not.
func TestI5_AnyTokenOfABlockSpeaksForItsLease(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	calls := map[string]string{
		"release_lease":           `SELECT released::text FROM pglock.release_lease($1, $2, $3)`,
		"renew_leases":            `SELECT CASE outcome WHEN 'renewed' THEN 'true' ELSE 'false' END FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`,
		"a renewal that may wait": `SELECT CASE outcome WHEN 'renewed' THEN 'true' ELSE 'false' END FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}', '1 s')`,
		"check_leases":            `SELECT (reason IS NULL)::text FROM pglock.check_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`,
		"release_leases":          `SELECT released::text FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`,
	}
	says := func(call string, g grant) string {
		var answer string
		if err := p.QueryRow(t.Context(), calls[call], g.name, g.token, g.id.String()).Scan(&answer); err != nil {
			return state(err)
		}
		return answer
	}
	before := freed(t, p, "x")
	for n := range 8 {
		for call := range calls {
			b := alone(t, p, "x", 8)
			for what, g := range map[string]grant{
				"another grant ID":   {name: "x", token: b.first + int64(n), id: uuid.New()},
				"the one before":     b.with(b.first - 1),
				"the one after":      b.with(b.token + 1),
				"a grant before":     before,
				"a name without one": {name: "y", token: b.first, id: b.id},
			} {
				if got := says(call, g); got != "false" && got != "LK003" || !isHeld(t, p, b.grant) {
					t.Errorf("I5: %s with %s: %s", call, what, got)
				}
			}
			if got := says(call, b.with(b.first+int64(n))); got != "true" {
				t.Errorf("%s with token %d of the block: %s", call, n, got)
			}
			if held := isHeld(t, p, b.grant); held == strings.HasPrefix(call, "release") {
				t.Errorf("%s with token %d of the block: held is %v", call, n, held)
			}
			_, _ = p.releaseBy(t.Context(), "release_lease", b.grant)
			for call := range calls { // and of a lease that has ended no token does
				if got := says(call, b.with(b.first+int64(n))); got != "false" && got != "LK003" {
					t.Errorf("%s with token %d of a block that was released: %s", call, n, got)
				}
			}
			before = b.grant
		}
	}
}

// An operator may name any token of the block that is in use, and none of a block that was: whoever holds the lock now keeps it.
func TestI10_BreakTakesAnyTokenOfTheBlockInUseAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	const by = `SELECT FROM pglock.break_lock('x', 'test', 'test', $1)`
	old := alone(t, p, "x", 8)
	p.mustReleaseBy(t, "release_lease", old.grant)
	for _, next := range []block{{grant: p.mustGrantBy(t, "acquire_lease", "x")}, {}} {
		if !next.granted {
			next = alone(t, p, "x", 8)
		}
		for _, token := range append(old.tokens(), old.first-1, old.token+1, next.token+1) {
			if token == next.first || token == next.token {
				continue
			}
			if _, err := p.Exec(t.Context(), by, token); state(err) != "LK006" || !isHeld(t, p, next.grant) {
				t.Errorf("I10: broken by token %d, which is not of %d to %d: %v", token, next.first, next.token, err)
			}
		}
		p.exec(t, by, next.token)
		if isHeld(t, p, next.grant) {
			t.Error("not broken")
		}
	}
	for n := range 8 {
		b := alone(t, p, "x", 8)
		var token, newToken int64
		if err := p.QueryRow(t.Context(), `SELECT token, new_token FROM pglock.break_lock('x', 'test', 'test', $1)`, b.first+int64(n)).Scan(&token, &newToken); err != nil ||
			token != b.token || newToken <= b.token || isHeld(t, p, b.grant) {
			t.Errorf("I10: broken by token %d of the block: token %d, new token %d, %v", n, token, newToken, err)
		}
	}
}

// What a refusal says of a token is true of the block's lease.
func TestALostBlockSaysWhyItIsLost(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	for want, end := range map[string]func(name string, b block){
		"released":   func(_ string, b block) { p.mustReleaseBy(t, "release_lease", b.grant) },
		"broken":     func(name string, _ block) { p.exec(t, breakSQL, name) },
		"expired":    func(name string, _ block) { endNow(t, p, name) },
		"taken over": func(name string, _ block) { endNow(t, p, name); p.mustAcquire(t, name, time.Minute) },
	} {
		b := alone(t, p, want, 4)
		end(want, b)
		for _, token := range b.tokens() {
			if got := one[string](t, p, `SELECT coalesce(reason, 'held') FROM pglock.check_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`, want, token, b.id.String()); got != want {
				t.Errorf("token %d of the block %d to %d: %s; want %s", token, b.first, b.token, got, want)
			}
		}
	}
}
