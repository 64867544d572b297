package fencedstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// Wait says for what a transaction waited when its time limit ended it, and who kept it waiting.
type Wait struct {
	For string    // as in "a row of public.accounts", "table public.accounts" or "the fence of 'report'"
	By  []Blocker // one or more
}

// Blocker is somebody whose transaction keeps another one waiting, as pg_stat_activity showed it: a server process, or
// a prepared transaction. The server shows State and Transaction of other users' processes to members of
// pg_read_all_stats alone, and to nobody where track_activities is off.
type Blocker struct {
	PID         int    // 0 of a prepared transaction
	Prepared    string // its identifier
	User        string
	Application string        // application_name, as in psql
	State       string        // as in "idle in transaction"; "" if it is hidden
	Transaction time.Duration // how long its transaction has been open; 0 if that is hidden
}

func (b Blocker) String() string {
	s := fmt.Sprintf("process %d", b.PID)
	if b.PID == 0 {
		s = fmt.Sprintf("prepared transaction %q", b.Prepared)
	}
	var facts []string
	if b.Application != "" {
		facts = append(facts, b.Application)
	}
	facts = append(facts, "user "+b.User)
	if b.State != "" && b.PID != 0 {
		facts = append(facts, b.State)
	}
	if b.Transaction > 0 {
		facts = append(facts, "in a transaction for "+b.Transaction.Round(time.Second/10).String())
	}
	return s + " (" + strings.Join(facts, ", ") + ")"
}

func (w *Wait) String() string {
	var all []string
	for _, b := range w.By {
		all = append(all, b.String())
	}
	return w.For + ", held up by " + strings.Join(all, " and ")
}

// query shows what those who kept the transaction waiting do now.
func (w *Wait) query() string {
	if b := w.By[0]; b.PID == 0 {
		return "SELECT * FROM pg_prepared_xacts WHERE gid = '" + strings.ReplaceAll(b.Prepared, "'", "''") + "'"
	} else if len(w.By) == 1 {
		return fmt.Sprintf("SELECT * FROM pg_stat_activity WHERE pid = %d", b.PID)
	}
	var pids []string
	for _, b := range w.By {
		pids = append(pids, fmt.Sprint(b.PID))
	}
	return fmt.Sprintf("SELECT * FROM pg_stat_activity WHERE pid IN (%s)", strings.Join(pids, ", "))
}

// lookout finds out what a transaction waits for, while it waits. It does not look before three quarters of the time
// limit have passed, so it costs other transactions nothing. Only while a transaction waits the server knows for whom,
// so the lookout cannot ask after the end.
type lookout struct {
	lease     *pglock.Lease // whose client asks
	resources []string
	end       func() // ends the looking, and waits for its goroutine

	mu   sync.Mutex // guards what follows; never held across I/O
	pid  int        // of the server process, when the fence is passed
	seen *Wait      // at the last look that counts
	none bool       // the last look saw none
}

// lookout watches a transaction that begins now, until stop.
func (o opening) lookout(ctx context.Context, p passage) *lookout {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &lookout{lease: o.fences[0].Lease, resources: o.resources()}
	ended := make(chan struct{})
	first := p.lockLimit() * 3 / 4
	timer := time.AfterFunc(time.Until(p.At.Add(first)), func() {
		defer close(ended)
		l.look(ctx, p)
	})
	l.end = sync.OnceFunc(func() {
		cancel()
		if !timer.Stop() {
			<-ended
		}
	})
	return l
}

// look looks again and again, more often as the end of the limit comes nearer.
func (l *lookout) look(ctx context.Context, p passage) {
	least := max(p.Limit/50, 20*time.Millisecond)
	for ctx.Err() == nil {
		l.mu.Lock()
		pid, resources := l.pid, l.resources
		l.mu.Unlock()
		if pid != 0 { // it has passed the fences
			resources = nil
		}
		if all, err := hooks.Of(l.lease).Blockers(ctx, pid, resources); err == nil {
			if age := time.Since(p.At); pid == 0 { // a transaction that is no older may be this one, at its end
				all = slices.DeleteFunc(all, func(b protocol.Blocker) bool {
					return 0 < b.Transaction && b.Transaction < age
				})
			}
			l.note(waitOf(all))
		}
		left := time.Until(p.At.Add(p.lockLimit()))
		pause.Exactly(ctx, max(least, left/2))
	}
}

// note keeps what a look has seen. A look that comes just after the end of the transaction sees none, so only the
// second of such looks counts.
func (l *lookout) note(w *Wait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w != nil || l.none {
		l.seen = w
	}
	l.none = w == nil
}

func waitOf(all []protocol.Blocker) *Wait {
	if len(all) == 0 {
		return nil
	}
	w := &Wait{For: all[0].At}
	for _, b := range all {
		if b.At == w.For {
			w.By = append(w.By, Blocker{PID: b.PID, Prepared: b.Prepared, User: b.User, Application: b.Application,
				State: b.State, Transaction: b.Transaction})
		}
	}
	return w
}

// passed notes that the transaction has passed its fences, on this server process.
func (l *lookout) passed(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pid, l.seen = pid, nil
}

// stop ends the lookout, and returns what the transaction waited for when it was seen last, or nil. It may be called
// again, and of nil.
func (l *lookout) stop() *Wait {
	if l == nil {
		return nil
	}
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}
