package lockadmin

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

func TestTextsAreAsTheyAreAndCommandsAreQuoted(t *testing.T) {
	l := lookAt(holderOf(19 * time.Second))
	l.Lock, l.Holders[0].Holder = "a\x1b[2J", "b\n\u202e"
	l.conclude()
	v := l.Verdicts[0]
	if v.Who != "b\n\u202e" || !strings.Contains(v.Text, "a\x1b[2J") || !strings.Contains(v.Text, "b\n\u202e") {
		t.Errorf("%+v, want raw texts", v)
	}
}

// Whoever reads a command reads it as it is, so that they can paste it.
func TestNoTextFromOutsideReachesACommandAsItIs(t *testing.T) {
	t.Parallel()
	const nasty = "a\x1b[2J\n\u202e"
	held := lookAt(holderOf(19*time.Second)).queued(time.Minute, true)
	held.Lock, held.Holders[0].Holder, held.Queue.Alive.Holder = nasty, nasty, nasty
	deadlock := lookAt(holderOf(time.Second))
	deadlock.Lock = nasty
	deadlock.Circle = []Wait{
		{Holds: nasty, Waiter: nasty, For: nasty + "2", Holder: nasty + "3", HeldFor: time.Minute},
		{Holds: nasty + "2", Waiter: nasty + "3", For: nasty, Holder: nasty, HeldFor: time.Hour}}
	broken := lookAt(holderOf(time.Second))
	broken.Lock, broken.Guards = nasty, []BrokenGuard{{Table: nasty, Resource: nasty, Key: nasty, Problem: nasty}}
	prepared := lookAt(holderOf(time.Second))
	prepared.Processes = []Backend{{Use: BackendRow, Prepared: nasty, User: nasty, Transaction: time.Minute}}
	schema, database := lookAt(), lookAt()
	schema.State, schema.Elsewhere = LockUnknown, []Elsewhere{{Schema: nasty, Holds: true}, {Schema: nasty + "2"}}
	database.State, database.Elsewhere = LockUnknown, []Elsewhere{{Database: nasty, Connections: 1}}
	closed := lookAt()
	closed.closed, closed.tables = true, []tableLock{{table: nasty, Backend: Backend{Prepared: nasty, User: nasty}}}
	for name, l := range map[string]*look{"held": held, "deadlock": deadlock, "guard": broken, "prepared": prepared,
		"schema": schema, "database": database, "closed": closed} {
		l.conclude()
		steps := 0
		for _, v := range l.Verdicts {
			for _, s := range v.Steps {
				steps++
				for _, text := range []string{s.Command, s.Schema, s.Database} {
					if !shown.AllPrint(text) {
						t.Errorf("%s: %q is in a command of %+v", name, text, v)
					}
				}
			}
		}
		if steps == 0 {
			t.Errorf("%s: no steps in %+v", name, l.Verdicts)
		}
	}
}
