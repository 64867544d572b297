//go:build unix

// Package cluster is the PostgreSQL server of the laboratory. It is killed, stopped, restarted, slowed down, and
// replaced by its standby, and reports the order of its commits all the while.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/migrations"
)

const (
	// patience bounds every step that takes a moment unless something is broken.
	patience = 20 * time.Second
)

// settings of every server. Their logs hold what the checks read.
var settings = map[string]string{
	"wal_level":       "logical",
	"wal_keep_size":   "128MB",
	"max_connections": "600",
	"log_line_prefix": "%m [%p] %a %e ",
}

// Cluster is a primary and, where there is one, its standby. Methods that do something to the servers take turns.
type Cluster struct {
	programs pgprograms.Programs
	password string // of the application's user
	commit   func(history.Commit)
	fail     func(error)

	turns sync.Mutex // held by what does something to the servers

	mu      sync.Mutex // guards what follows
	primary *node
	standby *node
	logs    []string // of servers that are gone
	patroni *Patroni // which keeps the servers, or nil

	unfollow context.CancelFunc
	followed sync.WaitGroup
}

// node is one server. Every one has the superuser's password of the first.
type node struct {
	*pgserver.Server
	url string
}

// Start starts a migrated primary with the application's tables. One goroutine calls commit for every transaction
// about locks or writes, in the order of commits, and fail once, if that order cannot be followed any more. Stop ends
// everything.
func Start(ctx context.Context, programs pgprograms.Programs, commit func(history.Commit),
	fail func(error)) (_ *Cluster, err error) {
	server, err := pgserver.Start(ctx, pgserver.Options{Programs: programs, Settings: settings})
	if err != nil {
		return nil, err
	}
	c := &Cluster{programs: programs, password: rand.Text(), commit: commit, fail: fail,
		primary: &node{server, server.URL()}, unfollow: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := migrations.Up(ctx, c.URL()); err != nil {
		return nil, err
	}
	err = c.ask(ctx, func(conn *pgx.Conn) error {
		if err := makeApp(ctx, conn, c.password); err != nil {
			return err
		}
		return makeSlot(ctx, conn)
	})
	if err != nil {
		return nil, err
	}
	c.followPrimary()
	return c, nil
}

// followPrimary begins to follow the primary's commits instead of the previous primary's.
func (c *Cluster) followPrimary() {
	ctx, cancel := context.WithCancel(context.Background())
	f := follower{url: c.URL(), commit: c.commit, fail: c.fail}
	c.unfollow = cancel
	c.followed.Go(func() { f.follow(ctx) })
}

// Stop ends the servers and leaves nothing.
func (c *Cluster) Stop() error {
	c.turns.Lock()
	defer c.turns.Unlock()
	if c.patroni != nil {
		c.patroni.watching()
		c.patroni.watched.Wait()
	}
	c.unfollow()
	c.followed.Wait()
	if c.patroni != nil {
		return c.patroni.stop()
	}
	var errs []error
	for _, n := range []*node{c.standby, c.primary} {
		if n != nil {
			errs = append(errs, c.retire(n))
		}
	}
	return errors.Join(errs...)
}

// retire stops a server for good and keeps its log.
func (c *Cluster) retire(n *node) error {
	log, err := os.ReadFile(n.LogFile())
	c.mu.Lock()
	c.logs = append(c.logs, string(log))
	c.mu.Unlock()
	return errors.Join(err, n.Stop())
}

// Logs are the logs of all servers that there were, and are.
func (c *Cluster) Logs() []string {
	if c.patroni != nil {
		return c.patroni.memberLogs()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	logs := append([]string(nil), c.logs...)
	for _, n := range []*node{c.primary, c.standby} {
		if n != nil {
			if log, err := os.ReadFile(n.LogFile()); err == nil {
				logs = append(logs, string(log))
			}
		}
	}
	return logs
}

// Description names the version of the server.
func (c *Cluster) Description() string { return c.primaryNode().Description() }

// URL is the superuser's connection string of the primary, without a proxy.
func (c *Cluster) URL() string { return c.primaryNode().url }

// Address is that of the primary.
func (c *Cluster) Address() string { return address(c.URL()) }

// AppURL is the application's connection string over a proxy.
func (c *Cluster) AppURL(proxy string) string { return c.userURL(App, proxy) }

// UserURL is the connection string of a user of the application's database, without a proxy.
func (c *Cluster) UserURL(user string) string { return c.userURL(user, c.Address()) }

func (c *Cluster) userURL(user, host string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, c.password), Host: host, Path: "/postgres",
		RawQuery: "sslmode=disable"}
	return u.String()
}

func (c *Cluster) primaryNode() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.primary
}

func address(connString string) string {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return "" // all are our own
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// ask lends a connection to the primary.
func (c *Cluster) ask(ctx context.Context, f func(*pgx.Conn) error) error {
	return c.primaryNode().ask(ctx, f)
}

func (n *node) ask(ctx context.Context, f func(*pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, n.url)
	for isFull(err) && ctx.Err() == nil {
		pause(ctx, 50*time.Millisecond)
		conn, err = pgx.Connect(ctx, n.url)
	}
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// isFull reports whether the server has no slot just now: a fault, or hundreds of clients, have taken them.
func isFull(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "53300"
}

// exec runs statements one after the other, each in a transaction of its own.
func (n *node) exec(ctx context.Context, statements ...string) error {
	return n.ask(ctx, func(conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
}

// eventually asks until the answer is true.
func (n *node) eventually(ctx context.Context, sql string, args ...any) error {
	return n.ask(ctx, func(conn *pgx.Conn) error {
		for deadline := time.Now().Add(patience); ; {
			var done *bool
			if err := conn.QueryRow(ctx, sql, args...).Scan(&done); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
			if done != nil && *done {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("waited %v in vain: %s", patience, sql)
			}
			pause(ctx, 5*time.Millisecond)
		}
	})
}

// Exec runs a statement on the primary.
func (c *Cluster) Exec(ctx context.Context, sql string) error { return c.primaryNode().exec(ctx, sql) }

// Crash ends the server without warning, all its processes at once, and starts it again after a while.
func (c *Cluster) Crash(ctx context.Context, down time.Duration) error {
	c.turns.Lock()
	defer c.turns.Unlock()
	n := c.primaryNode()
	if err := n.Kill(); err != nil {
		return err
	}
	pause(ctx, down)
	return n.Restart(context.WithoutCancel(ctx))
}

// Immediate stops the server at once, as an operator may: without a checkpoint, and without writing what was not
// committed. stopping is called when its processes have received the signal. A connection whose first message does
// not come would keep the server from ending.
func (c *Cluster) Immediate(ctx context.Context, down time.Duration, stopping func()) error {
	c.turns.Lock()
	defer c.turns.Unlock()
	n := c.primaryNode()
	if err := syscall.Kill(n.PID(), syscall.SIGQUIT); err != nil {
		return fmt.Errorf("cluster: stop the server: %w", err)
	}
	pause(ctx, 20*time.Millisecond)
	stopping()
	pause(ctx, down)
	return n.Restart(context.WithoutCancel(ctx))
}

// Restart stops the server in the orderly way and starts it again.
func (c *Cluster) Restart(ctx context.Context) error {
	c.turns.Lock()
	defer c.turns.Unlock()
	return c.primaryNode().Restart(context.WithoutCancel(ctx))
}

// Terminate ends some sessions of the workers, as an operator may, and returns how many.
func (c *Cluster) Terminate(ctx context.Context, application string, most int) (n int, err error) {
	err = c.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
			SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT $2) b`, application,
			most).Scan(&n)
	})
	return n, err
}
