package pglock_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// open is pglock.Open with an application_name, by which the test finds the client's connections.
func open(t *testing.T, db *pgtest.DB, opts ...pglock.Option) *pglock.Client {
	t.Helper()
	c := must.Get(pglock.Open(t.Context(), withSetting(t, db.URL(), "application_name", "opened"), opts...))(t)
	return c
}

func withSetting(t *testing.T, address, name, value string) string {
	t.Helper()
	u := must.Get(url.Parse(address))(t)
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// opened counts the connections of clients of open that the server has.
func opened(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	must.Do(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'opened'`).Scan(&n))
	return n
}

func TestOpenedClientGrantsRenewsAndHandsOverAndCloseEndsItsConnections(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	holder, waiter := open(t, db), open(t, db)
	l := mustAcquire(t, holder, "report", pglock.WithTTL(10*time.Second))
	granted := must.Go(func() error { _, err := waiter.Acquire(t.Context(), "report"); return err })
	admin := newAdmin(t, pool)
	pgtest.Eventually(t, "a waiter", func() bool {
		info, err := admin.Get(t.Context(), "report")
		return err == nil && info.Waiting == 1
	})
	before := l.Deadline()
	pgtest.Eventually(t, "a renewal", func() bool { return l.Deadline().After(before.Add(time.Second)) })
	must.Do(t, l.Release(t.Context()))
	must.Do(t, <-granted)
	if opened(t, pool) == 0 {
		t.Error("the server knows no connection of the clients: the name of the application was not sent")
	}
	for _, c := range []*pglock.Client{holder, waiter} {
		must.Note(t, c.Close(t.Context()))
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("a second Close: %v", err)
		}
		if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, pglock.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	}
	pgtest.Eventually(t, "the end of all connections", func() bool { return opened(t, pool) == 0 })
	if info, err := admin.Get(t.Context(), "report"); err != nil || info.Held {
		t.Errorf("%+v, %v; want the lock free", info, err)
	}
}

func TestOpenedClientWorksWhileTheApplicationsPoolIsUsedUp(t *testing.T) {
	db := pgtest.Parallel(t)
	config := must.Get(pgxpool.ParseConfig(db.URL()))(t)
	application := stdlib.OpenDB(*config.ConnConfig)
	defer application.Close()
	application.SetMaxOpenConns(1)
	c := open(t, db)
	defer c.Close(t.Context())
	tx, err := application.BeginTx(t.Context(), nil) // the only connection
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	inUse := func(db *sql.DB) bool { return db.Stats().InUse == db.Stats().MaxOpenConnections }
	if !inUse(application) {
		t.Fatal("the application's pool is not used up")
	}
	l := must.Get(c.Acquire(t.Context(), "report", pglock.WithTTL(6*time.Second)))(t)
	for range 2 { // the second of them on the connection that the first has made
		before := l.Deadline()
		pgtest.Eventually(t, "a renewal", func() bool { return l.Deadline().After(before.Add(time.Second)) })
	}
	if _, err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
	must.Note(t, l.Release(t.Context()))
	if !inUse(application) {
		t.Error("the application's connection was given back meanwhile: the test shows nothing")
	}
}

func TestOpenThatFailsLeavesNothingOpen(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	empty := pgtest.EmptyDatabase(t)
	for name, tc := range map[string]struct {
		url  string
		opts []pglock.Option
		want error
	}{
		"read-only server": {withSetting(t, db.URL(), "default_transaction_read_only", "on"), nil, pglock.ErrReadOnly},
		"no schema":        {empty.URL(), nil, pglock.ErrSchema},
		"bad option":       {db.URL(), []pglock.Option{pglock.WithSchema("")}, pglock.ErrInvalid},
	} {
		c, err := pglock.Open(t.Context(), withSetting(t, tc.url, "application_name", "opened"), tc.opts...)
		if c != nil || !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	pgtest.Eventually(t, "the end of all connections", func() bool {
		return opened(t, pool) == 0 && opened(t, empty.Pool(t)) == 0
	})
}

func TestOpenNamesAServerThatIsAwayWithoutThePasswordAndWorksWhenItIsBack(t *testing.T) {
	db := pgtest.Parallel(t)
	link := newLink(t, db.URL())
	const password = "hush-hush" // it does not come as far as a check of it
	link.down()
	_, err := pglock.Open(t.Context(), link.url(password))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "hush-hush") {
		t.Fatalf("%v, want the host and no password", err)
	}
	link.up(t)
	link.setSilent(true) // connections are taken, and nobody answers
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pglock.Open(ctx, link.url(password)); !errors.Is(err, context.DeadlineExceeded) ||
		strings.Contains(err.Error(), "hush-hush") {
		t.Fatalf("%v, want the end of ctx", err)
	}
	link.setSilent(false)
	c := must.Get(pglock.Open(t.Context(), link.url("")))(t)
	mustAcquire(t, c, "report")
	must.Note(t, c.Close(t.Context()))
}

func TestCloseOfAnOpenedClientDoesNotWaitForAServerThatIsSilent(t *testing.T) {
	db := pgtest.Parallel(t)
	link := newLink(t, db.URL())
	c := must.Get(pglock.Open(t.Context(), link.url("")))(t)
	l := mustAcquire(t, c, "report")
	must.Do(t, l.Release(t.Context()))
	link.setSilent(true)
	began := time.Now()
	must.Note(t, c.Close(t.Context()))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// The statement of Close that gets no answer goes over a connection of the pool, which pgx closes in its own time.
func TestCloseOfAnOpenedClientEndsWithItsContextWhenTheServerIsSilent(t *testing.T) {
	db := pgtest.Parallel(t)
	link := newLink(t, db.URL())
	c := must.Get(pglock.Open(t.Context(), link.url("")))(t)
	mustAcquire(t, c, "report")
	link.setSilent(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the end of ctx: the lease could not be released", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// The server becomes silent while Open checks the schema.
func TestOpenEndsWithItsContextWhenTheServerIsSilent(t *testing.T) {
	db := pgtest.Parallel(t)
	link, look := newLink(t, db.URL()), db.Conn(t)
	tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock.installation"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		c, err := pglock.Open(ctx, link.url(""))
		if err == nil {
			err = errors.Join(errors.New("it was opened"), c.Close(t.Context()))
		}
		opened <- err
	}()
	pgtest.Eventually(t, "the check of the schema waits", func() (waits bool) {
		err := look.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		return err == nil && waits
	})
	link.setSilent(true)
	cancel()
	select {
	case err := <-opened:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of ctx", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Open goes on")
	}
}

// link is a way to the server that a test can cut, or make silent.
type link struct {
	config   *pgxpool.Config // of the server
	address  string
	listener net.Listener
	silence  chan chan struct{} // 1-buffered: what the traffic waits for; nil: nothing
	tasks    sync.WaitGroup
}

func newLink(t *testing.T, server string) *link {
	t.Helper()
	config := must.Get(pgxpool.ParseConfig(server))(t)
	l := &link{config: config, silence: make(chan chan struct{}, 1)}
	l.silence <- nil
	l.up(t)
	t.Cleanup(func() {
		l.setSilent(false)
		l.down()
		l.tasks.Wait()
	})
	return l
}

// url is the way over the link, with the server's own password where none is given.
func (l *link) url(password string) string {
	c := l.config.ConnConfig
	u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, cmp.Or(password, c.Password, "none")),
		Host: l.address,
		Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	return u.String()
}

func (l *link) down() { _ = l.listener.Close() }

func (l *link) setSilent(silent bool) {
	if waited := <-l.silence; waited != nil {
		close(waited)
	}
	var wait chan struct{}
	if silent {
		wait = make(chan struct{})
	}
	l.silence <- wait
}

// pass waits while the link is silent.
func (l *link) pass() {
	wait := <-l.silence
	l.silence <- wait
	if wait != nil {
		<-wait
	}
}

// up opens the way, at another address than before: somebody may have that by now.
func (l *link) up(t *testing.T) {
	t.Helper()
	var err error
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	l.address = l.listener.Addr().String()
	listener := l.listener
	l.tasks.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			network, address := pgconn.NetworkAddress(l.config.ConnConfig.Host, l.config.ConnConfig.Port)
			far, err := net.Dial(network, address)
			if err != nil {
				_ = near.Close()
				continue
			}
			l.tasks.Go(func() { l.copy(far, near) })
			l.tasks.Go(func() { l.copy(near, far) })
		}
	})
}

// copy copies until one side ends, and then ends both.
func (l *link) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	part := make([]byte, 1<<16)
	for {
		n, err := from.Read(part)
		l.pass()
		if n > 0 {
			_, _ = to.Write(part[:n])
		}
		if err != nil {
			return
		}
	}
}

// Statements run without the values of a call's context. So New asks without those of its own.
func TestAHookThatWantsAValueOfTheCallersContextMakesNewFail(t *testing.T) {
	t.Parallel()
	type tenant struct{}
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
			if ctx.Value(tenant{}) == nil {
				return true, errors.New("no tenant")
			}
			return true, nil
		}
	})
	_, err := pglock.New(context.WithValue(t.Context(), tenant{}, 1), pool)
	if err == nil || !strings.Contains(err.Error(), "no tenant") {
		t.Errorf("%v, want what the hook says", err)
	}
}
