//go:build unix

package lockadmin_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// The environment of a process that holds lock report for an hour: at once with a sign of life, or not.
const (
	holdURL  = "PGLOCK_LIVES_URL"
	holdSign = "PGLOCK_LIVES_SIGN"
)

func init() {
	if url := os.Getenv(holdURL); url != "" {
		holder = func() { fmt.Fprintln(os.Stderr, holdForEver(url)); os.Exit(1) }
	}
}

// holdForEver is the process.
func holdForEver(url string) error {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	c, err := pglock.New(context.Background(), pool, pglock.WithDefaultHolder("holder"))
	if err != nil {
		return err
	}
	lease, err := c.TryAcquire(context.Background(), "report", pglock.WithTTL(time.Hour))
	if err == nil && os.Getenv(holdSign) != "" {
		_, err = lease.Extend(context.Background(), 2*time.Hour)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

// holding starts a process that holds lock report, and returns when it does.
func holding(t *testing.T, db *pgtest.DB, sign string) *os.Process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holdURL+"="+db.URL(), holdSign+"="+sign)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process
}

// life is what the lists say of the holder of lock report, which must be the same.
func life(t *testing.T, admin *lockadmin.Admin) lockadmin.Life {
	t.Helper()
	info := must.Get(admin.Get(t.Context(), "report"))(t)
	lives := must.Get(admin.Lives(t.Context(), []pglock.LockInfo{info}))(t)
	sessions, err := lists.All(admin.Sessions(t.Context(), lockadmin.SessionsQuery{Session: info.Session}))
	if err != nil || len(sessions) != 1 {
		t.Fatal(sessions, err)
	}
	if sessions[0].Life != lives[0].Life {
		return lockadmin.Life(fmt.Sprintf("%s and %s", sessions[0].Life, lives[0].Life)) // one has changed between
	}
	return lives[0].Life
}

func awaitLife(t *testing.T, admin *lockadmin.Admin, want lockadmin.Life) {
	t.Helper()
	pgtest.Eventually(t, "the holder to be "+string(want), func() bool { return life(t, admin) == want })
}

// quiet makes it look as if the holder of lock report had given no sign for as long.
func quiet(t *testing.T, db *pgtest.DB, d time.Duration) {
	t.Helper()
	conn := db.Conn(t)
	execute(t, conn,
		`UPDATE pglock.sessions SET seen_at = seen_at - $1::float8 * interval '1 s', alive_until = alive_until - $1::float8 * interval '1 s'`, d.Seconds())
	execute(t, conn,
		`UPDATE pglock.locks SET acquired_at = acquired_at - $1::float8 * interval '1 s', renewed_at = renewed_at - $1::float8 * interval '1 s'`, d.Seconds())
}

func TestLifeOfAHolderThatIsKilled(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	p := holding(t, db, "now")
	awaitLife(t, admin, lockadmin.LifeAlive)
	must.Do(t, p.Kill())
	awaitLife(t, admin, lockadmin.LifeUnknown) // its connection has ended, and it may open another
	quiet(t, db, 16*time.Second)
	if got := life(t, admin); got != lockadmin.LifeDead {
		t.Errorf("%s, want it dead", got)
	}
	quiet(t, db, 10*time.Minute)
	execute(t, db.Conn(t), "SELECT pglock.sweep()")
	if got := life(t, admin); got != lockadmin.LifeDead {
		t.Errorf("%s, want what is known of it kept while it holds something", got)
	}
}

func TestLifeOfAHolderThatIsStopped(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	p := holding(t, db, "now")
	awaitLife(t, admin, lockadmin.LifeAlive)
	must.Do(t, p.Signal(syscall.SIGSTOP))
	if got := life(t, admin); got != lockadmin.LifeAlive {
		t.Errorf("%s, want it alive a moment after its sign", got)
	}
	quiet(t, db, 16*time.Second)
	if got := life(t, admin); got != lockadmin.LifeSilent {
		t.Errorf("%s, want it silent: its connection is open", got)
	}
	must.Do(t, p.Signal(syscall.SIGCONT))
	awaitLife(t, admin, lockadmin.LifeAlive)
}

// Nobody can tell of a lease that has just been granted. A client that has died before its first sign cannot be told
// from one that goes through a pooler and is stopped.
func TestLifeOfAHolderThatGaveNoSign(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	p := holding(t, db, "")
	if got := life(t, admin); got != lockadmin.LifeUnknown {
		t.Errorf("%s, want it unknown", got)
	}
	must.Do(t, p.Kill())
	quiet(t, db, 16*time.Second)
	if got := life(t, admin); got != lockadmin.LifeSilent {
		t.Errorf("%s, want it silent", got)
	}
}

// In real time, without anything but a TTL of an hour.
func TestAHolderOfAnHourIsKnownWithinSeconds(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	p := holding(t, db, "")
	awaitLife(t, admin, lockadmin.LifeAlive)
	for range 12 {
		time.Sleep(time.Second)
		if got := life(t, admin); got != lockadmin.LifeAlive {
			t.Fatalf("%s, want it alive", got)
		}
	}
	must.Do(t, p.Kill())
	killed := time.Now()
	awaitLife(t, admin, lockadmin.LifeUnknown)
	awaitLife(t, admin, lockadmin.LifeDead)
	if d := time.Since(killed); d < 4*time.Second || d > 25*time.Second {
		t.Errorf("dead %v after it was killed, want 5 to 15 s", d)
	}
}
