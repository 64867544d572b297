package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func init() { roles["soak"] = soak }

const (
	soakLabel      = "PGLOCK_INTEGRATION_SOAK" // the holder's label of a worker of the soak test
	soakCallers    = 50                        // in each worker
	soakSessionTTL = 2 * time.Second
)

// soakLocks are the locks that the workers fight for: six of one holder at a time, one of readers and writers, and a
// semaphore.
var soakLocks = []string{"x0", "x1", "x2", "x3", "x4", "x5", "readers", "three"}

func soakOptions(name string) []pglock.AcquireOption {
	// of which calls share a ticket
	opts := []pglock.AcquireOption{pglock.WithTTL(1500*time.Millisecond +
		250*time.Millisecond*rand.N[time.Duration](3))}
	switch {
	case name == "three":
		opts = append(opts, pglock.WithLimit(3))
	case name == "readers" && rand.N(5) != 0:
		opts = append(opts, pglock.WithShared())
	}
	return opts
}

// soak has many goroutines wait for the locks and give up at random, until SIGTERM. Then it takes every lock once
// more, one after another, and leaves.
func soak(ctx context.Context, url string, say func(report)) error {
	load, end := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer end()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool, pglock.WithDefaultHolder(os.Getenv(soakLabel)),
		pglock.WithSessionTTL(soakSessionTTL))
	if err != nil {
		return err
	}
	var mu sync.Mutex // reports are lines: one at a time
	lost := func(err error) bool {
		var l *pglock.LostError
		if errors.As(err, &l) {
			mu.Lock()
			say(report{Event: "lost", Token: int64(l.Token)})
			mu.Unlock()
		}
		return l != nil
	}
	errs := make(chan error, soakCallers)
	for range soakCallers {
		go func() {
			for load.Err() == nil {
				if err := soakOnce(ctx, c, soakLocks[rand.N(len(soakLocks))], lost); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range soakCallers {
		err = errors.Join(err, <-errs)
	}
	for _, name := range soakLocks {
		brief, cancel := context.WithTimeout(ctx, patience)
		l, acquireErr := c.Acquire(brief, name, append(soakOptions(name), pglock.WithTTL(patience))...)
		cancel()
		if acquireErr == nil {
			acquireErr = l.Release(ctx)
		}
		if acquireErr != nil && !lost(acquireErr) {
			err = errors.Join(err, fmt.Errorf("in the end: %w", acquireErr))
		}
	}
	if err = errors.Join(err, c.Close(ctx)); err == nil {
		say(report{Event: "done"})
	}
	return err
}

// soakOnce takes the lock once, unless it gives up before.
func soakOnce(ctx context.Context, c *pglock.Client, name string, lost func(error) bool) error {
	if rand.N(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(rand.N(2*time.Second)+1)) // often in the moment of a grant
		defer cancel()
	}
	l, err := c.Acquire(ctx, name, soakOptions(name)...)
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()), lost(err):
		return nil
	case err != nil:
		return err
	}
	if rand.N(10) == 0 {
		time.Sleep(rand.N(20 * time.Millisecond)) // work of random length: the chaos of this test, not its clock
	}
	// stopped meanwhile
	if err := l.Release(ctx); err != nil && !lost(err) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// Hundreds wait in six processes for eight locks, give up at random, are stopped and killed, and lose the connections
// on which they listen and renew. No lock may stay stuck and none be granted that nobody knows of; and the log that the
// database kept must show the order of the tickets, increasing tokens, and no leases at one time that the modes forbid.
func TestSoak_HundredsWaitWhileProcessesAndConnectionsDie(t *testing.T) {
	pgtest.Long(t, "TestTrap9_StormOfCancelledWaits", "TestDeadWaitersArePassedOver")
	workers, chaos, calm := 6, 20*time.Second, 4*time.Second
	if testing.Short() {
		chaos, calm = 8*time.Second, 2*time.Second
	}
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	logTickets(t, look)

	var mu sync.Mutex
	lost := make(map[int64]bool) // tokens of leases whose callers were told that they are lost
	var done, kills, stops atomic.Int64
	var readers, managers sync.WaitGroup
	alive, labels := make([]*process, workers), make([]string, workers)
	start := func(worker, life int) {
		labels[worker] = fmt.Sprintf("worker %d.%d", worker, life)
		p := startProcess(t, "soak", db.URL(), soakLabel+"="+labels[worker])
		alive[worker] = p
		readers.Go(func() {
			for r := range p.reports {
				switch r.Event {
				case "lost":
					mu.Lock()
					lost[r.Token] = true
					mu.Unlock()
				case "done":
					done.Add(1)
				case "error":
					t.Errorf("worker %d.%d: %s", worker, life, r.Err)
				}
			}
		})
	}
	until := time.Now().Add(chaos)
	for n := range workers {
		start(n, 0)
		managers.Go(func() {
			for life := 1; ; {
				time.Sleep(time.Second + rand.N(5*time.Second)) // between two blows
				if time.Now().After(until) {
					return
				}
				p := alive[n].cmd.Process
				if rand.N(5) == 0 {
					_ = p.Kill()
					kills.Add(1)
					start(n, life)
					life++
					continue
				}
				_ = p.Signal(syscall.SIGSTOP)
				// often past a lease, at times past the session
				time.Sleep(rand.N(2 * soakSessionTTL / time.Duration(1+rand.N(4))))
				_ = p.Signal(syscall.SIGCONT)
				stops.Add(1)
			}
		})
	}
	cuts := cutConnections(t, look, until)
	managers.Wait()

	// Calm: nothing but the cancelled contexts goes on. What was granted to the dead runs out first.
	pgtest.Eventually(t, "the sessions of the dead to end", func() bool {
		return one[bool](t, look,
			`SELECT NOT EXISTS (SELECT FROM pglock.sessions WHERE alive_until > clock_timestamp() AND holder <> ALL ($1))`, labels)
	})
	calmToken := one[int64](t, look, `SELECT max(token) FROM pglock.locks`)
	time.Sleep(calm) // of load, not for anything to happen
	lastToken := one[int64](t, look, `SELECT max(token) FROM pglock.locks`)
	for _, p := range alive {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	ended := make(chan struct{})
	go func() { readers.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(3 * patience):
		t.Error("the workers did not get every lock once more")
		logQueues(t, look)
		for _, p := range alive {
			_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints where it hangs
		}
		<-ended
	}
	if n := done.Load(); int(n) != workers {
		t.Errorf("%d of %d workers came to their end", n, workers)
	}

	wantCount(t, look, 0, "%d tickets were left in the queues",
		`SELECT count(*) FROM pglock.waiters JOIN pglock.sessions USING (session_id) WHERE alive_until > clock_timestamp()`)
	wantCount(t, look, 0, "%d locks were left held",
		`SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`)
	unknown := 0
	for _, token := range expiredGrants(t, look) {
		if token > calmToken && !lost[token] {
			unknown++
		}
	}
	if unknown != 0 {
		t.Errorf("%d leases ran out in the calm that no caller knew of", unknown)
	}
	checkGrants(t, look)
	seen := checkQueue(t, look)
	t.Logf("%d grants, %d through the queue, %d given up, %d passed over, %d asked again, at most %d queued for one "+
		"lock; %d told of a loss; %d kills, %d stops, %d connections cut; %d grants in the calm",
		seen.grants, seen.served, seen.left, seen.passed, seen.requeued, seen.longest, len(lost), kills.Load(),
		stops.Load(), cuts, lastToken-calmToken)
	if seen.served < int(chaos/time.Second)*10 || seen.left == 0 || kills.Load()+stops.Load() == 0 || cuts == 0 ||
		lastToken == calmToken {
		t.Error("too little happened to show anything")
	}
}

// Whoever asks while everybody in the queue is dead is granted at once. A session that comes alive again after that
// asks anew, and the log tells it from one that was overtaken while it was alive.
func TestSoak_TheLogKnowsWhoWasDead(t *testing.T) {
	db := pgtest.Parallel(t)
	look, holder, waiter := newPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	logGrants(t, look)
	logTickets(t, look)
	g := holder.mustAcquire(t, "x", time.Minute)
	q := waiter.mustEnqueue(t, "x", "exclusive", nil)
	look.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`,
		waiter.session().String())
	holder.mustReleaseBy(t, "release_lease", g)
	g = holder.mustAcquire(t, "x", time.Minute)
	again, err := waiter.enqueue(t.Context(), "x", q.id, "exclusive", nil)
	if err != nil || again.granted || again.ticket <= q.ticket {
		t.Fatalf("the waiter asks again: %+v, %v; want a ticket above %d", again, err, q.ticket)
	}
	holder.mustReleaseBy(t, "release_lease", g)
	if seen := checkQueue(t, look); seen.grants != 3 || seen.served != 1 || seen.requeued != 1 {
		t.Errorf("%+v", seen)
	}
}

// cutConnections ends the clients' own connections, which listen and renew, for a while: a few at a time, mostly one
// that has just begun to listen.
func cutConnections(t *testing.T, look *peer, until time.Time) (cuts int) {
	t.Helper()
	const cut = `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
		SELECT pid FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'pglock %' AND query ILIKE $1 ORDER BY random() LIMIT $2) b`
	for time.Now().Before(until) {
		cuts += one[int](t, look, cut, "LISTEN%", 1+rand.N(6))
		if rand.N(2) == 0 {
			cuts += one[int](t, look, cut, "%", 1+rand.N(6))
		}
		time.Sleep(rand.N(time.Second)) // between two blows
	}
	return cuts
}

// logQueues tells how things are when they are stuck.
func logQueues(t *testing.T, look *peer) {
	t.Helper()
	rows, _ := look.Query(t.Context(), `
		SELECT format('lock %s#%s %s %s token %s ends in %s', name, slot, mode, holder, token, expires_at - clock_timestamp())
			FROM pglock.locks WHERE expires_at > clock_timestamp()
		UNION ALL
		SELECT format('ticket %s of %s %s %s since %s, alive for %s', q.ticket, q.name, q.mode, q.holder, clock_timestamp() - q.enqueued_at, s.alive_until - clock_timestamp())
			FROM pglock.waiters q LEFT JOIN pglock.sessions s USING (session_id)`)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, line := range lines {
		t.Log(line)
	}
	if err != nil {
		t.Log(err)
	}
}

// logTickets adds to logGrants a log of the queue, numbered by the same sequence: tickets are written while the head of
// the lock cannot be granted. alive is what the session was when the ticket went; dead are the tickets whose sessions
// were dead at a grant.
func logTickets(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `
		CREATE TABLE public.ticket_log (
			n bigint DEFAULT nextval('public.grant_log_n_seq'), name text, ticket bigint, grant_id uuid, queued boolean, alive boolean);
		CREATE FUNCTION public.log_ticket() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			IF TG_OP = 'INSERT' THEN
				INSERT INTO public.ticket_log (name, ticket, grant_id, queued) VALUES (NEW.name, NEW.ticket, NEW.grant_id, true);
			ELSE
				INSERT INTO public.ticket_log (name, ticket, grant_id, queued, alive)
					VALUES (OLD.name, OLD.ticket, OLD.grant_id, false, EXISTS (SELECT FROM pglock.sessions WHERE session_id = OLD.session_id AND alive_until > clock_timestamp()));
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER log_ticket AFTER INSERT OR DELETE ON pglock.waiters FOR EACH ROW EXECUTE FUNCTION public.log_ticket();
		ALTER TABLE public.grant_log ADD COLUMN dead bigint[];
		CREATE FUNCTION public.log_dead() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			NEW.dead := ARRAY(SELECT q.ticket FROM pglock.waiters q WHERE q.name = NEW.name AND NOT EXISTS (
				SELECT FROM pglock.sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp()));
			RETURN NEW;
		END $$;
		CREATE TRIGGER log_dead BEFORE INSERT ON public.grant_log FOR EACH ROW EXECUTE FUNCTION public.log_dead();`)
}

// expiredGrants are the tokens of those whose leases ran out.
func expiredGrants(t *testing.T, p *peer) []int64 {
	t.Helper()
	rows, _ := p.Query(t.Context(), `
		SELECT token FROM pglock.events WHERE kind = 'takeover'
		UNION ALL
		SELECT token FROM pglock.locks WHERE expires_at > '-infinity' AND expires_at <= clock_timestamp()`)
	tokens := must.Get(pgx.CollectRows(rows, pgx.RowTo[int64]))(t)
	return tokens
}

// logged is one line of the two logs: a change of a ticket, or of a lease.
type logged struct {
	Name    string
	GrantID string
	Xact    string
	Ticket  *int64
	Queued  bool
	Alive   bool
	Slot    int
	Mode    string
	Places  int
	Token   int64
	Granted *time.Time
	Expires *time.Time // nil: released
	Ended   *time.Time // the lease before
	Dead    []int64    // tickets
}

// span is a lease by the server's clock.
type span struct {
	logged
	end time.Time
}

// tally is what the logs tell of how much happened.
type tally struct{ grants, served, left, passed, requeued, longest int }

// checkQueue reads the logs as they were written. For every lock: tickets are served in increasing order, tokens
// strictly increase over all slots, and by the server's clock no two leases are held at one time that the modes forbid
// together. Tickets that a transaction removes are gone before its grants. Only a ticket whose session is dead at that
// moment may be overtaken, and one that its call takes back, also if that is rolled back and tried again: it is never
// served, and its call never asks again.
func checkQueue(t *testing.T, p *peer) (seen tally) {
	t.Helper()
	rows, _ := p.Query(t.Context(), `
		SELECT name, grant_id::text AS grantid, xact, ticket, queued, alive, slot, mode, places, token, granted, expires, ended, dead FROM (
			SELECT n, name, grant_id, xmin::text AS xact, ticket, queued, coalesce(alive, true) AS alive, 0 AS slot, '' AS mode, 0 AS places,
				0 AS token, NULL::timestamptz AS granted, NULL::timestamptz AS expires, NULL::timestamptz AS ended, NULL::bigint[] AS dead
			FROM public.ticket_log WHERE ticket > 0
			UNION ALL
			SELECT n, name, grant_id, xmin::text, NULL, false, false, slot, mode, coalesce(capacity, 0), new_token, granted_at,
				nullif(new_expires, '-infinity'), old_expires, dead
			FROM public.grant_log) l
		ORDER BY CASE WHEN ticket > 0 AND NOT queued THEN least(n, min(n) FILTER (WHERE ticket IS NULL) OVER (PARTITION BY name, xact)) ELSE n END, ticket IS NULL, n`)
	log := must.Get(pgx.CollectRows(rows, pgx.RowToStructByName[logged]))(t)
	complaints := 0
	complain := func(format string, args ...any) {
		if complaints++; complaints <= 20 {
			t.Errorf(format, args...)
		}
	}
	type place struct {
		name string
		slot int
	}
	overtaken := make(map[string]map[int64]string) // by ticket: by whom
	queues := make(map[string]map[int64]bool)
	lastTicket, lastToken := make(map[string]int64), make(map[string]int64)
	gone := make(map[string]logged) // by grant ID: its ticket's end, while no grant followed
	current := make(map[place]*span)
	leases := make(map[string][]*span)
	for _, e := range log {
		queue := queues[e.Name]
		if queue == nil {
			queue = make(map[int64]bool)
			queues[e.Name], overtaken[e.Name] = queue, make(map[int64]string)
		}
		at := place{e.Name, e.Slot}
		lease := current[at]
		switch {
		case e.Queued:
			if before, was := gone[e.GrantID]; was && before.Alive {
				seen.requeued++
				if by := overtaken[e.Name][*before.Ticket]; by != "" {
					complain("I9: lock %s: %s overtook ticket %d, which asked again", e.Name, by, *before.Ticket)
				}
			}
			delete(gone, e.GrantID)
			queue[*e.Ticket] = true
			seen.longest = max(seen.longest, len(queue))
		case e.Ticket != nil:
			delete(queue, *e.Ticket)
			gone[e.GrantID] = e
		case lease != nil && lease.Token == e.Token && e.Expires != nil: // renewed
			lease.end = *e.Expires
		default:
			if lease != nil { // released, handed over, or taken over
				if e.Ended != nil && e.Ended.Before(lease.end) {
					lease.end = *e.Ended
				}
				delete(current, at)
			}
			if e.Expires == nil {
				break
			}
			lease = &span{e, *e.Expires}
			current[at] = lease
			leases[e.Name] = append(leases[e.Name], lease)
			seen.grants++
			if e.Token <= lastToken[e.Name] {
				complain("I2: lock %s: token %d after %d", e.Name, e.Token, lastToken[e.Name])
			}
			lastToken[e.Name] = e.Token
			served := int64(0)
			if g, was := gone[e.GrantID]; was && g.Xact == e.Xact {
				served = *g.Ticket
				seen.served++
				if served <= lastTicket[e.Name] {
					complain("I9: lock %s: ticket %d was served after %d", e.Name, served, lastTicket[e.Name])
				}
				lastTicket[e.Name] = served
				if by := overtaken[e.Name][served]; by != "" {
					complain("I9: lock %s: %s overtook ticket %d, which was served", e.Name, by, served)
				}
			}
			delete(gone, e.GrantID)
			for ticket := range queue {
				if overtaken[e.Name][ticket] == "" && (served == 0 || ticket < served) &&
					!slices.Contains(e.Dead, ticket) {
					overtaken[e.Name][ticket] = fmt.Sprintf("token %d (ticket %d)", e.Token, served)
				}
			}
		}
	}
	for _, e := range gone {
		if e.Alive {
			seen.left++
		} else {
			seen.passed++
		}
	}
	for name, spans := range leases {
		var held []*span
		for _, s := range spans { // in the order of their grants
			held = slices.DeleteFunc(held, func(h *span) bool { return !h.end.After(*s.Granted) })
			for _, h := range held {
				if h.Mode != s.Mode || s.Mode == "exclusive" {
					complain("I1: lock %s: %s token %d was granted while %s token %d was held", name, s.Mode, s.Token,
						h.Mode, h.Token)
				}
			}
			if held = append(held, s); s.Mode == "limit" && len(held) > s.Places {
				complain("I1: lock %s: %d held it at a time", name, len(held))
			}
		}
	}
	if seen.requeued > 3 { // a session may come alive in the moment in which it is passed over
		complain("I9: %d waiters that were alive lost their place", seen.requeued)
	}
	return seen
}
