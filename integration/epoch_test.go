package integration

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The parts of a token: a line, a step and a number of the sequence.
const (
	mostLines  = 1<<19 - 1
	mostSteps  = 127
	mostNumber = 1<<43 - 1
)

func epochOf(line, step int64) int64 { return line<<8 + step }

func tokenOf(epoch, number int64) int64 { return epoch<<36 + number }

// The epoch after any other lets tokens rise above what they must, and stays below what a promotion begins.
func TestI22_StepsNeverReachTheNextLine(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	p.exec(t, `SET search_path = pglock, pg_temp`)
	const call = `SELECT pglock.next_epoch($1, $2, $3)`
	next := func(epoch, above, drawn int64) (e int64, state string) {
		t.Helper()
		err := p.QueryRow(t.Context(), call, epoch, above, drawn).Scan(&e)
		if refused, is := errors.AsType[*pgconn.PgError](err); is {
			return 0, refused.Code
		} else if err != nil {
			t.Fatal(err)
		}
		return e, ""
	}
	const used = "54000"
	for what, c := range map[string]struct {
		epoch, above, drawn, want int64
		state                     string
	}{
		"the first step":                   {0, 0, 1, 1, ""},
		"the last step of a line":          {epochOf(3, mostSteps-1), 0, 1, epochOf(3, mostSteps), ""},
		"no step is left":                  {epochOf(3, mostSteps), 0, 1, 0, used},
		"no step is left above a token":    {epochOf(3, 5), tokenOf(epochOf(3, mostSteps), 9), 1, 0, used},
		"above the greatest of this line":  {epochOf(3, 5), 4<<44 - 1, 1, 0, used},
		"above the first of the next line": {epochOf(3, 5), 4 << 44, 1, epochOf(4, 0), ""},
		"no step left, above another line": {epochOf(3, mostSteps), 4 << 44, 1, epochOf(4, 0), ""},
		"above a step of another line":     {epochOf(3, 5), tokenOf(epochOf(9, 2), 77), 5, epochOf(9, 3), ""},
		"the last step of another line": {epochOf(3, 5), tokenOf(epochOf(9, mostSteps), 77), 5, epochOf(10, 0),
			""},
		"a number that has reached the step": {0, tokenOf(0, mostNumber), 1, mostSteps + 1, used},
		"a number that the sequence knows":   {0, tokenOf(0, mostNumber), mostNumber, 1, ""},
		"the last line":                      {epochOf(mostLines-1, 0), mostLines << 44, 1, epochOf(mostLines, 0), ""},
		"no line is left":                    {epochOf(mostLines, mostSteps), math.MaxInt64, 1, 0, used},
		"above everything":                   {0, math.MaxInt64, 1, 0, used},
	} {
		if e, state := next(c.epoch, c.above, c.drawn); state != c.state || state == "" && e != c.want {
			t.Errorf("%s: next_epoch(%d, %d, %d) = %d %s, want %d %s", what, c.epoch, c.above, c.drawn, e, state,
				c.want, c.state)
		}
	}
	for range 500 {
		line, number := rand.Int64N(mostLines), 1+rand.Int64N(mostNumber)
		epoch, other := epochOf(line, rand.Int64N(mostSteps+1)), epochOf(max(0, line-1+rand.Int64N(3)),
			rand.Int64N(mostSteps+1))
		above := tokenOf(other, 1+rand.Int64N(mostNumber))
		e, state := next(epoch, above, number)
		if state != "" {
			if epoch&255 < mostSteps && (above-number)>>36&255 < mostSteps {
				t.Errorf("next_epoch(%d, %d, %d) is refused with %s, though there are steps", epoch, above, number,
					state)
			}
			continue
		}
		greater := tokenOf(e, number) > above && e > epoch
		stays := e>>8 == line || above>>44 > line
		whole := e&255 <= mostSteps && tokenOf(e, mostNumber)>>44 == e>>8 // no number carries it into the next line
		if !greater || !stays || !whole {
			t.Errorf("next_epoch(%d, %d, %d) = %d: greater %v, stays on its line %v, below the next %v", epoch, above,
				number, e, greater, stays, whole)
		}
	}
}

// When steps, numbers or lines are used up, nothing is granted any more, and the error says what helps. No token is
// ever not greater than those before it.
func TestI22_WhereTokensEndGrantsAreRefused(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	var last int64
	grants := func(what string) {
		t.Helper()
		for _, name := range []string{"known", what} {
			g := p.mustAcquire(t, name, time.Minute)
			if g.token <= last {
				t.Errorf("I22: %s: token %d after %d", what, g.token, last)
			}
			last = g.token
			if released, err := p.release(t.Context(), g); err != nil || !released {
				t.Fatal(released, err)
			}
		}
	}
	refused := func(what, sql, code string, says ...string) {
		t.Helper()
		_, err := p.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != code {
			t.Errorf("%s: %v, want %s", what, err, code)
			return
		}
		for _, s := range says {
			if !strings.Contains(pgErr.Message+pgErr.Hint, s) {
				t.Errorf("%s: %s (%s): no %q", what, pgErr.Message, pgErr.Hint, s)
			}
		}
	}
	promoted := func() { // as after a promotion, which is another process on another timeline
		t.Helper()
		p.exec(t, `UPDATE pglock.installation SET timeline = timeline - 1, started = started - interval '1 s'`)
	}
	const try = `SELECT pglock.acquire_lease('known', gen_random_uuid(), gen_random_uuid(), 'h', '1 min')`
	const advance = `SELECT pglock.advance_epoch('test', 'test')`

	grants("first")
	for n := range mostSteps {
		floor := one[int64](t, p, advance)
		if floor < last || n%50 == 0 {
			grants(fmt.Sprint("step ", n))
			if last <= floor {
				t.Errorf("step %d: token %d, which is not above %d", n, last, floor)
			}
		}
	}
	grants("after the last step")
	refused("a step too many", advance, "54000", "127 steps are used up", "promotion",
		fmt.Sprintf("advance_epoch(reason, actor, %d)", int64(1)<<44))
	// as after a restore: the sequence is behind
	p.exec(t, `UPDATE pglock.locks SET token = token + 1000000 WHERE name = 'known'`)
	refused("a grant that needs a step", try, "54000", "127 steps are used up")
	refused("a break that needs a step",
		`UPDATE pglock.locks SET expires_at = 'infinity' WHERE name = 'known'; SELECT pglock.break_lock('known', 'r', 'a')`, "54000")
	refused("a prune that needs a step",
		`UPDATE pglock.locks SET expires_at = '-infinity', ended_at = clock_timestamp() - interval '1 day'; SELECT pglock.prune_locks('1 s')`, "54000")
	if ok := one[bool](t, p, `SELECT ok FROM pglock.diagnose() WHERE item = 'epoch'`); ok {
		t.Error("doctor is content when no step is left")
	}
	last += 1000000
	promoted()
	grants("after a promotion")
	if last>>44 != 1 {
		t.Errorf("token %d, want one of line 1", last)
	}
	p.exec(t, `UPDATE pglock.installation SET epoch = epoch + 127`)
	if floor := one[int64](t, p, `SELECT pglock.advance_epoch('test', 'test', $1)`, int64(2)<<44); floor != 2<<44 {
		t.Errorf("a line begun by hand: %d", floor)
	}
	grants("a line by hand")

	p.exec(t, `SELECT setval('pglock.fencing_token_seq', 8796093022205)`)
	grants("the last numbers")
	refused("a number too many", try, "2200H", "fencing_token_seq")
	if ok := one[bool](t, p, `SELECT ok FROM pglock.diagnose() WHERE item = 'token sequence'`); ok {
		t.Error("doctor is content when no number is left")
	}
	p.exec(t, `SELECT setval('pglock.fencing_token_seq', 1)`)
	refused("a step above the last number",
		fmt.Sprintf(`SELECT pglock.advance_epoch('numbers begin again', 'test', %d)`, last), "54000",
		fmt.Sprint(int64(3)<<44))
	p.exec(t, `SELECT pglock.advance_epoch('numbers begin again', 'test', $1)`, int64(3)<<44)
	grants("numbers that begin again")

	p.exec(t, `UPDATE pglock.installation SET epoch = $1`, epochOf(mostLines-1, 0))
	promoted()
	grants("the last line")
	if last>>44 != mostLines {
		t.Errorf("token %d, want one of line %d", last, mostLines)
	}
	promoted()
	refused("a line too many", try, "54000", "524287 changes of the timeline")
	refused("above everything", `SELECT pglock.advance_epoch('test', 'test', 9223372036854775807)`, "54000")
	refused("below everything", `SELECT pglock.advance_epoch('test', 'test', -1)`, "22023", "above")
}

// A dump from a server with more failovers behind it, or an upgrade, sets the timeline back: the tokens go on
// ascending, and do so over later failovers, also if those lost the record of the ones before. The timeline of another
// cluster is another timeline, whatever its number.
func TestI22_TokensAscendWhenTheTimelineIsSetBack(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	line := one[int64](t, p, `SELECT timeline FROM pglock.installation`)
	for _, c := range []struct {
		what                string
		recorded, epoch, is int64 // is: the line that follows
		elsewhere           int64 // the record's cluster is another
	}{
		{"set back from timeline 7", 7, epochOf(6, 3), 6 + line, 0},
		{"set back from timeline 7 of a schema made on timeline 5", 7, epochOf(2, 0), 2 + line, 0},
		{"promoted after a record of an earlier timeline", line - 1, epochOf(6, 127), 7, 0},
		{"promoted twice", line - 2, epochOf(6, 0), 8, 0},
		{"the same timeline", line, epochOf(6, 5), 6, 0},
		{"another cluster's timeline of that number", line, epochOf(6, 5), 6 + line, 1},
		{"another cluster's earlier timeline", line - 2, epochOf(6, 0), 6 + line, 1},
	} {
		p.exec(t, `UPDATE pglock.installation SET timeline = $1, epoch = $2, system = system - $3,
			started = started - interval '1 s'`, c.recorded, c.epoch, c.elsewhere)
		if got := one[bool](t, p, `SELECT since_us = 0 FROM pglock.timeline()`); got != (c.is > c.epoch>>8) {
			t.Errorf("%s: the timeline has just changed: %v", c.what, got)
		}
		if g := p.mustAcquire(t, c.what, time.Minute); g.token>>44 != c.is || g.token <= tokenOf(c.epoch, 0) {
			t.Errorf("I22: %s: token %d of line %d, want line %d", c.what, g.token, g.token>>44, c.is)
		}
		if got := one[int64](t, p, `SELECT timeline FROM pglock.installation
			WHERE system = (SELECT system_identifier FROM pg_control_system())`); got != line {
			t.Errorf("%s: timeline %d is on record", c.what, got)
		}
		if one[bool](t, p, `SELECT since_us = 0 FROM pglock.timeline()`) {
			t.Errorf("%s: the timeline has just changed after a grant", c.what)
		}
	}
}

// After a restore the sequence is behind a lock's token, and the grant of that lock begins a step. It waits for whoever
// has locked the record, as the first request for a subtree does. So when it is granted the step is on record, and what
// is granted below the subtree next has a greater token.
func TestI2_AStepIsOnRecordWhenItsTokenIsGranted(t *testing.T) {
	db := pgtest.Parallel(t)
	p, other, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	p.change(t, "acquire_otherwise", "lock_timeout TO '1s'", "lock_timeout TO '1min'") // a busy machine needs longer
	p.mustEnd(t, p.mustSubtree(t, "t").grant)
	look.exec(t, `UPDATE pglock.locks SET token = token + (1 << 20)`)
	id := uuid.New()
	p.subtree(t, "t", id)
	other.exec(t, `BEGIN; UPDATE pglock.installation SET subtrees = true`)
	granted := must.Go(func() reply { return p.subtree(t, "t", id) })
	pgtest.Eventually(t, "the grant to wait for the record, or to be there", func() bool {
		return len(granted) > 0 || one[bool](t, look, `SELECT cardinality(pg_blocking_pids($1)) > 0`, p.PgConn().PID())
	})
	other.exec(t, `COMMIT`)
	above := <-granted
	if !above.granted {
		t.Fatalf("%+v", above)
	}
	p.mustEnd(t, above.grant)
	if below := look.mustAcquire(t, "t/x", time.Minute); below.token <= above.token {
		t.Errorf("I2: token %d below the subtree, after %d", below.token, above.token)
	}
}

// After a restore every lock may be behind. Only one grant takes the step; those that waited for it keep no record.
func TestI2_WhoeverIsBehindWaitsForNoCommitOfOthers(t *testing.T) {
	db := pgtest.Parallel(t)
	other, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	wg := pgtest.Group(t)
	peers := map[string]*peer{"x": newPeer(t, db.URL()), "y": newPeer(t, db.URL())}
	for name, p := range peers {
		p.mustEnd(t, p.mustAcquire(t, name, time.Minute))
	}
	look.exec(t, `UPDATE pglock.locks SET token = token + (1 << 20)`)
	other.exec(t, `BEGIN; UPDATE pglock.installation SET epoch = epoch + 1`)
	granted := make(chan string, len(peers))
	for name, p := range peers {
		p.exec(t, `BEGIN`)
		wg.Go(func() {
			p.mustAcquire(t, name, time.Minute)
			granted <- name
		})
		pgtest.Eventually(t, "the grant to wait for the record", func() bool {
			return one[bool](t, look, `SELECT cardinality(pg_blocking_pids($1)) > 0`, p.PgConn().PID())
		})
	}
	other.exec(t, `COMMIT`)
	pgtest.Eventually(t, "both to be granted before one of them has committed", func() bool {
		return len(granted) == len(peers)
	})
}
