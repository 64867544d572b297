package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// seedVariable replays the choices of a run, not what the server and the scheduler made of them.
const seedVariable = "PGLOCK_INTEGRATION_SEED"

// refusals are what a transaction of the test may be refused with: the protocol's own codes, the limits that the fence
// sets, the operator's kill. A deadlock is none of them.
var refusals = []string{"LK001", "LK002", "LK003", "40001", "55P03", "57014", "25P03", "25P04", "57P01", "connection"}

// Writers of every isolation level, with the library or with SQL alone, draw what they do: pause past their leases,
// pass the fence in savepoints that are rolled back or not, write without it, are broken, killed, released or overtaken
// at any point. The server's own order of commits says what came of it: see checkOrder.
func TestI3_I4_I10_RandomInterleavingsOfWritersAtAGuardedTable(t *testing.T) {
	pgtest.Long(t, "TestI3_EveryWayToWriteToAGuardedTableNeedsItsFence", "TestI3_TokensNeverGoDownInCommitOrder")
	t.Parallel() // most of it is waiting
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s is %q: it must be a number", seedVariable, text)
		}
	}
	t.Logf("these choices again: %s=%d", seedVariable, seed)
	length := 3 * time.Second
	if testing.Short() {
		length /= 2
	}
	server := pgtest.Dedicated(t, map[string]string{"wal_level": "logical"})
	admin := newPeer(t, server.URL())
	database := func(name string) string { return strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1) }
	admin.exec(t, `CREATE DATABASE migrated`)
	must.Do(t, migrations.Up(t.Context(), database("migrated")))
	for n, name := range []string{"one_resource", "keyed"} {
		t.Run(name, func(t *testing.T) {
			admin.exec(t, `CREATE DATABASE `+name+` TEMPLATE migrated`)
			a := newArena(t, database(name), name == "keyed")
			a.run(t, seed+uint64(n), length)
			a.checkOrder(t)
		})
	}
}

// enough is how often each must have happened at least, for a round to show anything; half of it with -short.
var enough = map[string]int{"accepted": 6, "accepted by Store": 3, "LK002": 2, "LK003": 3, "40001": 1, "LK011": 4,
	"rolled back": 1,
	"broken":      5, "killed": 1}

// arena is a guarded table and what became of the writes to it.
type arena struct {
	url   string
	keyed bool     // a resource for each row, and several locks for them; else one resource and its lock
	locks []string // any of them may write, if its token passes

	mu         sync.Mutex
	kinds      map[string]int   // of answers
	outcomes   map[int64]string // by the write's ID: accepted, refused or unknown
	complaints []string
}

var accounts = []string{"a", "b", "c"}

// newArena makes the tables, and the logs that tell the order of commits afterwards.
func newArena(t *testing.T, url string, keyed bool) *arena {
	t.Helper()
	a := &arena{url: url, keyed: keyed, locks: []string{"ledger"}, kinds: make(map[string]int),
		outcomes: make(map[int64]string)}
	look := newPeer(t, url)
	look.exec(t, `
		CREATE TABLE account (key text PRIMARY KEY, balance bigint NOT NULL);
		CREATE FUNCTION fence_in_block(name text, token bigint, grant_id uuid, resource text, again boolean, undo boolean) RETURNS void
		LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pglock.fence(name, token, grant_id, resource, again);
			IF undo THEN RAISE 'undone'; END IF;
		EXCEPTION WHEN raise_exception THEN NULL;
		END $$`)
	look.exec(t, `INSERT INTO account SELECT unnest($1::text[]), 0`, accounts)
	key := (*string)(nil)
	if keyed {
		column := "key"
		key, a.locks = &column, []string{"red", "blue", "green"}
	}
	look.exec(t, `SELECT pglock.guard_table('account', 'ledger', $1)`, key)
	logOrder(t, look)
	return a
}

func (a *arena) resource(account string) string {
	if a.keyed {
		return "ledger/" + account
	}
	return "ledger"
}

// run has the writers and the operator work for so long, and longer on a machine that is too busy for enough.
func (a *arena) run(t *testing.T, seed uint64, length time.Duration) {
	t.Helper()
	const writers = 8
	until := time.Now().Add(length)
	bounded, cancel := context.WithTimeout(t.Context(), length+3*patience)
	defer cancel()
	goesOn := func() bool {
		return bounded.Err() == nil && (time.Now().Before(until) || a.missing() != "" && !a.failed())
	}
	var wg sync.WaitGroup
	var clients []*pglock.Client
	for n := range writers {
		w := &writer{arena: a, rand: rand.New(rand.NewPCG(seed, uint64(n))), level: levels[(n+n/3)%len(levels)],
			name: fmt.Sprint("writer-", n), next: int64(n) * 1_000_000, other: newPeer(t, a.url)}
		if n%3 == 0 {
			pool := newPool(t, w.url())
			w.client, w.store = newClient(t, pool), fencedstore.New(pool)
			clients = append(clients, w.client)
		}
		wg.Go(func() {
			for goesOn() {
				w.attempt(bounded)
			}
			if w.conn != nil {
				_ = w.conn.Close(context.WithoutCancel(bounded))
			}
		})
	}
	defer func() { // their heartbeats renew
		for _, c := range clients {
			must.Note(t, c.Close(context.WithoutCancel(bounded)))
		}
	}()
	operator := newPeer(t, a.url)
	operator.exec(t, `SET lock_timeout = '1s'`)
	choices := rand.New(rand.NewPCG(seed, writers))
	for goesOn() {
		time.Sleep(time.Duration(choices.Int64N(int64(100 * time.Millisecond)))) // between two blows
		var done bool
		var err error
		what := "broken"
		if choices.IntN(3) > 0 {
			_, err = operator.Exec(bounded, `SELECT FROM pglock.break_lock($1, 'test', 'operator')`,
				a.locks[choices.IntN(len(a.locks))])
			done = err == nil
		} else {
			what = "killed"
			err = operator.QueryRow(bounded, `SELECT coalesce((SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE application_name = $1 AND xact_start IS NOT NULL AND datname = current_database() LIMIT 1), false)`,
				fmt.Sprint("writer-", choices.IntN(writers))).Scan(&done)
		}
		if s := state(err); err != nil && s != "LK006" && s != "55P03" && bounded.Err() == nil {
			t.Errorf("the operator was answered %v", err)
		}
		if done {
			a.count(what)
		}
	}
	wg.Wait()
	a.kinds["taken over"] = one[int](t, operator, `SELECT count(*) FROM pglock.events WHERE kind = 'takeover'`)
	t.Logf("%v", a.kinds)
	if missing := a.missing(); missing != "" && !a.failed() {
		t.Errorf("too few to show anything: %s", missing)
	}
	for _, c := range a.complaints[:min(20, len(a.complaints))] {
		t.Error(c)
	}
}

func (a *arena) failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.complaints) > 0
}

// missing names what has not happened often enough yet.
func (a *arena) missing() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var few []string
	for kind, least := range enough {
		if testing.Short() {
			least = (least + 1) / 2
		}
		if a.kinds[kind] < least {
			few = append(few, fmt.Sprintf("%d of %s", a.kinds[kind], kind))
		}
	}
	slices.Sort(few)
	return strings.Join(few, ", ")
}

func (a *arena) count(kind string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kinds[kind]++
}

func (a *arena) complain(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.complaints = append(a.complaints, fmt.Sprintf(format, args...))
}

// writer makes one transaction after another.
type writer struct {
	*arena
	rand   *rand.Rand
	level  pgx.TxIsoLevel
	name   string
	next   int64 // the ID of its next write
	other  *peer // another connection of its process
	conn   *peer // nil before the first, and after a loss
	client *pglock.Client
	store  *fencedstore.Store // nil: it uses SQL alone
	claim  claim              // what it believes to hold
	lease  *pglock.Lease      // the same, with the library
}

// claim is a grant, as long as somebody believes in it.
type claim struct {
	lock  string
	token int64
	id    uuid.UUID
	ttl   time.Duration
	ends  time.Time // at the latest, unless it is renewed
}

func (w *writer) url() string { return w.arena.url + "&application_name=" + w.name }

// attempt makes sure that the writer believes in a grant, old or new, and makes one transaction.
func (w *writer) attempt(ctx context.Context) {
	if w.conn == nil || w.conn.IsClosed() {
		conn, err := pgx.Connect(ctx, w.url())
		if err != nil {
			w.complain("%s: connect: %v", w.name, err)
			return
		}
		w.conn = &peer{conn, uuid.New()}
	}
	if w.claim.token == 0 || w.rand.IntN(8) == 0 {
		if err := w.acquire(ctx); err != nil && !w.conn.IsClosed() && !errors.Is(err, pglock.ErrLost) &&
			!errors.Is(err, pglock.ErrOutcomeUnknown) && state(err) != "57P01" {
			w.complain("%s: acquire: %v", w.name, err)
		}
	}
	if w.claim.token == 0 {
		time.Sleep(time.Duration(w.rand.Int64N(int64(30 * time.Millisecond)))) // between two tries
		return
	}
	p := w.draw()
	read := make(map[string]int64)
	if !w.keyed { // before the fence, as in a program that computes first: only the one lock protects it
		for _, account := range p.accounts {
			var balance int64
			if err := w.conn.QueryRow(ctx, `SELECT balance FROM account WHERE key = $1`,
				account).Scan(&balance); err != nil {
				return // killed
			}
			read[account] = balance
		}
	}
	time.Sleep(p.before) // the writer's pause, here and below: nothing waits for it
	transact := w.transact
	if w.store != nil {
		transact = w.transactByStore
	}
	err, unknown := transact(ctx, p, read)
	w.record(p, err, unknown)
	if w.rand.IntN(3) > 0 { // else it goes on with the grant, whatever became of it
		if _, err := w.other.release(ctx, grant{name: w.claim.lock, token: w.claim.token, id: w.claim.id}); err != nil {
			w.complain("%s: release: %v", w.name, err)
		}
		w.claim = claim{}
	}
}

func (w *writer) acquire(ctx context.Context) error {
	w.claim = claim{}
	lock, ttl := w.locks[w.rand.IntN(len(w.locks))], 100*time.Millisecond+
		time.Duration(w.rand.Int64N(int64(150*time.Millisecond)))
	if w.store != nil {
		lease, err := w.client.TryAcquire(ctx, lock, pglock.WithTTL(ttl))
		if err == nil {
			w.lease, w.claim = lease, claim{lock, int64(lease.Token()), exported(lease), ttl, time.Now().Add(ttl)}
		} else if errors.Is(err, pglock.ErrHeld) {
			err = nil
		}
		return err
	}
	g, err := w.conn.acquire(ctx, lock, uuid.New(), ttl, false)
	if err == nil && g.granted {
		w.claim = claim{lock, g.token, g.id, ttl, time.Now().Add(ttl)}
	}
	return err
}

// record keeps what the writer was told.
func (w *writer) record(p plan, err error, unknown bool) {
	kind := state(err)
	switch {
	case err == nil && p.last == "ROLLBACK", errors.Is(err, errRollback):
		kind = "rolled back"
	case err == nil && w.store != nil:
		kind = "accepted by Store"
	case err == nil:
		kind = "accepted"
	case errors.Is(err, pglock.ErrLost), errors.Is(err, pglock.ErrReleased):
		kind = "LK003" // or LK001, or known by the local clock
	case errors.Is(err, fencedstore.ErrStaleToken):
		kind = "LK002"
	case kind == "":
		kind = "connection"
	}
	told := "refused"
	switch {
	case unknown:
		told, kind = "unknown", "unknown"
	case strings.HasPrefix(kind, "accepted"):
		told = "accepted"
	}
	switch {
	case p.hole && told == "accepted":
		w.complain("I3: %s: a write whose fence was %q was accepted: %+v", w.name, p.fence, p)
	case !slices.Contains(refusals, kind) && told == "refused" && kind != "rolled back" && (kind != "LK011" || !p.hole):
		w.complain("%s: a write whose fence was %q was answered %v: %+v", w.name, p.fence, err, p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kinds[kind]++
	w.outcomes[p.id] = told
}

var errRollback = errors.New("drawn")

// transact makes the transaction with SQL alone. unknown: COMMIT was sent and not answered.
func (w *writer) transact(ctx context.Context, p plan, read map[string]int64) (err error, unknown bool) {
	defer func() {
		if err != nil && !w.conn.IsClosed() {
			_, _ = w.conn.Exec(ctx, `ROLLBACK`)
		}
	}()
	if _, err := w.conn.Exec(ctx, `BEGIN ISOLATION LEVEL `+string(w.level)); err != nil {
		return err, false
	}
	for _, sql := range p.settings { // before the fence, and again after it
		if _, err := w.conn.Exec(ctx, sql); err != nil {
			return err, false
		}
	}
	if err := w.passFence(ctx, p); err != nil {
		return err, false
	}
	if err := w.work(ctx, w.conn, p, read); err != nil {
		return err, false
	}
	answer, err := w.conn.Exec(ctx, p.last)
	if err == nil && p.last != "ROLLBACK" && answer.String() != "COMMIT" {
		err = fmt.Errorf("COMMIT was answered %s", answer)
	}
	var pgErr *pgconn.PgError
	return err, err != nil && (!errors.As(err, &pgErr) || strings.HasPrefix(pgErr.Code, "57P"))
}

func (w *writer) transactByStore(ctx context.Context, p plan, read map[string]int64) (err error, unknown bool) {
	var fences fencedstore.Fences
	for _, account := range p.accounts {
		fences = append(fences, fencedstore.Fence{Lease: w.lease, Resource: w.resource(account), SameToken: p.again})
	}
	store := w.store.With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: w.level}))
	fn := func(ctx context.Context, tx pgx.Tx) error {
		// the server has to notice, not the callback
		if err := w.work(context.WithoutCancel(ctx), tx, p, read); err != nil {
			return err
		}
		if p.last == "ROLLBACK" {
			return errRollback
		}
		return nil
	}
	if len(fences) == 1 {
		err = store.Write(ctx, fences[0], fn)
	} else {
		err = store.Write(ctx, fences, fn)
	}
	return err, errors.Is(err, pglock.ErrOutcomeUnknown)
}
