package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A gate is what the application's own code inside COMMIT waits for: a deferred trigger, or a cursor that is kept. It
// is closed until open.
type gate struct {
	t      *testing.T
	keeper *peer
	key    uint32 // of an advisory lock
}

// newGate closes the gate of the writers that connect as p.
func newGate(t *testing.T, look, p *peer) *gate {
	t.Helper()
	g := &gate{t, look, p.PgConn().PID()}
	look.exec(t, `SELECT pg_advisory_lock($1)`, g.key)
	return g
}

func (g *gate) open() {
	g.t.Helper()
	g.keeper.exec(g.t, `SELECT pg_advisory_unlock($1)`, g.key)
}

// newGatedTables makes the tables of this file: rows of gated wait inside COMMIT for the gate of their writer and then
// write a row into ledger; ledger itself waits for nobody.
func newGatedTables(t *testing.T, db *pgtest.DB) {
	t.Helper()
	newLedger(t, db)
	newPeer(t, db.URL()).exec(t, `
		CREATE TABLE gated (token bigint, name text, id uuid);
		CREATE FUNCTION pass_gate(n bigint) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(pg_backend_pid());
			INSERT INTO ledger (token) VALUES (n);
			RETURN n;
		END $$;
		CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.id IS NOT NULL THEN
				PERFORM pglock.fence(NEW.name, NEW.token, NEW.id);
			END IF;
			PERFORM pass_gate(NEW.token);
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER wait_at_gate AFTER INSERT ON gated DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`)
}

// commitAtGate sends COMMIT and returns when it waits at the gate.
func commitAtGate(t *testing.T, p, look *peer) <-chan commitAnswer {
	t.Helper()
	answered := sendCommit(t, p)
	p.awaitBlocked(t, look)
	return answered
}

// What the application runs inside COMMIT after our check may take as long as it likes, and the lease may end
// meanwhile: nobody is granted the lock, hands it over, breaks, releases or prunes it before the commit, which stands.
func TestI4_A5_ApplicationsOwnWorkInsideCommitIsBeforeTheNextGrant(t *testing.T) {
	db := pgtest.Parallel(t)
	newGatedTables(t, db)
	hastyBreaks(t, newPeer(t, db.URL()))
	for what, sql := range map[string]string{
		"deferred trigger": `INSERT INTO gated VALUES ($1)`,
		"cursor with hold": `DECLARE kept CURSOR WITH HOLD FOR SELECT pass_gate($1)`,
	} {
		for _, level := range levels {
			t.Run(what+"/"+string(level), func(t *testing.T) {
				t.Parallel() // most of it is waiting
				p, look, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
				other.exec(t, `SET lock_timeout = '3s'`) // no wait is for ever, should one be wrong
				g := p.mustAcquire(t, t.Name(), time.Minute)
				gate := newGate(t, look, p)
				p.exec(t, `BEGIN ISOLATION LEVEL `+string(level))
				must.Do(t, p.fence(t.Context(), g, g.name))
				if what == "deferred trigger" {
					p.exec(t, sql, g.token)
				} else { // a utility statement takes no arguments
					p.exec(t, one[string](t, look, `SELECT replace($1, '$1', $2::bigint::text)`, sql, g.token))
				}
				answered := commitAtGate(t, p, look)

				// While the lease runs.
				other.mustRenew(t, g) // passes
				wantWaits(t, other, breakSQL, g.name)
				wantWaits(t, other, `SELECT released FROM pglock.release_lease($1, $2, $3)`, g.name, g.token,
					g.id.String())

				// When it has ended.
				endNow(t, other, g.name)
				wantNotGranted(t, other, g)
				waiter, err := other.enqueue(t.Context(), g.name, uuid.New(), "exclusive", nil)
				if err != nil || waiter.granted {
					t.Errorf("I4: a waiter was granted the lock before the commit: %+v, %v", waiter, err)
				}
				if waiter.ticket != 0 {
					other.exec(t, `SELECT FROM pglock.give_up(gen_random_uuid(), ARRAY[$1::text], ARRAY[$2::uuid])`,
						g.name, waiter.id.String())
				}
				other.prune(t)
				if !one[bool](t, other, `SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1)`, g.name) {
					t.Error("I21: the lock was pruned")
				}
				select {
				case a := <-answered:
					t.Fatalf("COMMIT did not wait at the gate: %+v", a)
				default:
				}
				gate.open()
				a := <-answered
				wantAnswer(t, other, g, a.tag, a.err, "")
				if next := other.mustAcquire(t, g.name, time.Minute); next.token <= g.token {
					t.Errorf("I2: token %d after %d", next.token, g.token)
				}
			})
		}
	}
}

// Deferred triggers run in the order of their statements: what the application has queued before the fence runs before
// the check, which then sees the lease end. The same holds for a fence that is passed inside COMMIT itself.
func TestI4_CheckComesAfterWhatWasDeferredBeforeTheFence(t *testing.T) {
	db := pgtest.Parallel(t)
	newGatedTables(t, db)
	p, look, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, tc := range []struct {
		what   string
		fence  func(t *testing.T, p *peer, g grant)
		end    func(t *testing.T, other *peer, g grant)
		answer string
	}{
		{"written before the fence, lease ended", fencedAfterGated, func(t *testing.T, other *peer, g grant) {
			endNow(t, other, g.name)
		}, "LK001"},
		{"written before the fence, broken and granted", fencedAfterGated, breakAndGrant, "LK003"},
		{"written before the fence, lease holds", fencedAfterGated, func(*testing.T, *peer, grant) {}, ""},
		{"fence inside COMMIT, lease ended", fencedInCommit, func(t *testing.T, other *peer, g grant) {
			endNow(t, other, g.name)
		}, "LK001"},
		{"fence inside COMMIT, broken and granted", fencedInCommit, breakAndGrant, "LK003"},
		{"fence inside COMMIT, lease holds", fencedInCommit, func(*testing.T, *peer, grant) {}, ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			p.exec(t, `ROLLBACK`) // of a case before that failed
			g := p.mustAcquire(t, t.Name(), time.Minute)
			gate := newGate(t, look, p)
			p.exec(t, `BEGIN`)
			tc.fence(t, p, g)
			answered := commitAtGate(t, p, look)
			tc.end(t, other, g)
			gate.open()
			a := <-answered
			wantAnswer(t, other, g, a.tag, a.err, tc.answer)
		})
	}
}

func fencedAfterGated(t *testing.T, p *peer, g grant) {
	t.Helper()
	p.exec(t, `INSERT INTO gated VALUES ($1)`, g.token)
	must.Do(t, p.fence(t.Context(), g, g.name))
}

func fencedInCommit(t *testing.T, p *peer, g grant) {
	t.Helper()
	p.exec(t, `INSERT INTO gated VALUES ($1, $2, $3)`, g.token, g.name, g.id.String())
}

func breakAndGrant(t *testing.T, other *peer, g grant) {
	t.Helper()
	other.exec(t, breakSQL, g.name)
	other.mustAcquire(t, g.name, time.Minute)
}

// No limit of the fence but transaction_timeout ends what runs inside COMMIT: the next holder is granted the lock when
// it is over, and not when the lease is. It is before the next grant even so.
func TestHole_I16_WorkInsideCommitOutlivesTheLease(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.exec(t, `
		CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(4); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleep()`)
	g := p.mustAcquire(t, "x", 3*time.Second)
	p.exec(t, `BEGIN`)
	must.Do(t, p.fence(t.Context(), g, "x"))
	p.exec(t, `INSERT INTO ledger (token) VALUES ($1)`, g.token)
	ended := one[time.Time](t, look, `SELECT expires_at FROM pglock.locks WHERE name = 'x'`)
	answered := sendCommit(t, p)
	late := passed(t, look, "x").Sub(ended)
	a := <-answered
	t.Logf("COMMIT of 4 s with a lease of 3 s was answered %+v; the next holder passed the fence %v after the end of "+
		"the lease", a, late)
	if serverVersion(t, look) >= 170000 {
		if a.err == nil {
			t.Error("I16: COMMIT was not ended by transaction_timeout")
		}
		return
	}
	wantAnswer(t, look, g, a.tag, a.err, "")
	if late < 500*time.Millisecond {
		t.Errorf("the next holder passed the fence %v after the end of the lease: does the documentation say so?", late)
	}
}
