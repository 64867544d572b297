package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func init() { roles["hammer"] = hammer }

// hammer takes the lock again and again, makes one fenced read-modify-write in each tenure, and reports every write
// that was acknowledged. Like a careless program it does not look at lease.Valid: the fence has to save it.
func hammer(ctx context.Context, url string, say func(report)) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	store := fencedstore.New(pool)
	say(report{Event: "ready"})
	for {
		// a queue would hand it to the stopped
		lease, err := c.TryAcquire(ctx, "x", pglock.WithTTL(250*time.Millisecond))
		if errors.Is(err, pglock.ErrHeld) {
			time.Sleep(rand.N(10 * time.Millisecond))
			continue
		}
		if errors.Is(err, pglock.ErrLost) {
			continue // stopped while it was being granted
		}
		if err != nil {
			return err
		}
		var balance int64 // read before the fence, as by a program that computes first
		if err := pool.QueryRow(ctx, `SELECT balance FROM account`).Scan(&balance); err != nil {
			return err
		}
		if rand.N(4) == 0 {
			time.Sleep(rand.N(100 * time.Millisecond)) // work of random length: the chaos of this test, not its clock
		}
		err = store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE account SET balance = $1`, balance+1); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO ledger (token, read) VALUES ($1, $2)`, lease.Token(), balance)
			return err
		})
		if err == nil {
			say(report{Event: "acknowledged", Token: int64(lease.Token())})
		}
		_ = lease.Release(ctx)
	}
}

// Ten processes hammer one lock while they are stopped and killed at random. The logs that the database kept must show:
// no overlap of leases, strictly increasing tokens, no stale write, no lost acknowledged write.
func TestTenProcessesUnderStopAndKill(t *testing.T) {
	pgtest.Long(t, "TestI8_CrashedHolderIsFollowedByTheFirstInTheQueue", "TestI1_GrantIntervalsNeverOverlap")
	const processes, chaos = 10, 6 * time.Second
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	look.exec(t, `CREATE TABLE account (balance bigint); INSERT INTO account VALUES (0);
		CREATE TABLE ledger (n bigint GENERATED ALWAYS AS IDENTITY, token bigint, read bigint, at timestamptz DEFAULT clock_timestamp())`)
	var mu sync.Mutex
	acknowledged := make(map[int64]bool)
	wg := pgtest.Group(t)
	began, stops, kills := time.Now(), 0, 0
	goesOn := func() bool { // for longer where the machine is too busy to show anything
		mu.Lock()
		defer mu.Unlock()
		few := len(acknowledged) < 20 || kills == 0 || stops == 0
		return time.Since(began) < chaos || few && time.Since(began) < chaos+patience
	}
	for range processes {
		workers := make(chan *process, 1)
		start := func() *process {
			p := startProcess(t, "hammer", db.URL())
			wg.Go(func() {
				for r := range p.reports {
					switch r.Event {
					case "acknowledged":
						mu.Lock()
						acknowledged[r.Token] = true
						mu.Unlock()
					case "error":
						t.Errorf("a worker failed: %s", r.Err)
					}
				}
			})
			return p
		}
		workers <- start()
		wg.Go(func() {
			p := <-workers
			for goesOn() {
				switch rand.N(6) {
				case 0:
					_ = p.cmd.Process.Kill()
					p = start()
					mu.Lock()
					kills++
					mu.Unlock()
				default:
					_ = p.cmd.Process.Signal(syscall.SIGSTOP)
					time.Sleep(rand.N(500 * time.Millisecond)) // often past the lease
					_ = p.cmd.Process.Signal(syscall.SIGCONT)
					mu.Lock()
					stops++
					mu.Unlock()
				}
				time.Sleep(rand.N(400 * time.Millisecond))
			}
			_ = p.cmd.Process.Kill()
		})
	}
	wg.Wait()

	grants := checkGrants(t, look)
	wantCount(t, look, 0, "I3: %d writes carry a token that is not greater than the one before",
		`SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM ledger) l WHERE token <= before`)
	wantCount(t, look, 0, "I3: %d writes were made from a stale read",
		`SELECT count(*) FROM (SELECT read, row_number() OVER (ORDER BY n) - 1 AS balance FROM ledger) l WHERE read <> balance`)
	writes := one[int](t, look, `SELECT count(*) FROM ledger`)
	if balance := one[int](t, look, `SELECT balance FROM account`); balance != writes {
		t.Errorf("the balance is %d after %d writes: updates were lost", balance, writes)
	}
	lost := 0
	for token := range acknowledged {
		if one[int](t, look, `SELECT count(*) FROM ledger WHERE token = $1`, token) != 1 {
			lost++
		}
	}
	if lost != 0 {
		t.Errorf("%d acknowledged writes are not in the ledger", lost)
	}
	t.Logf("%d grants, %d writes, %d acknowledged, %d stops, %d kills", grants, writes, len(acknowledged), stops, kills)
	if writes < 20 || kills == 0 || stops == 0 {
		t.Error("too little happened to show anything")
	}
}
