package peer

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// ZooKeeperLock is the lock of the Go client for ZooKeeper.
func ZooKeeperLock() Kind {
	return Kind{
		Name: "zookeeper", Server: ZooKeeper,
		Is:       "go-zookeeper's Lock, one server",
		Settings: "one connection, which is one session, for each process",
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "yes, a queue on the server",
			Token:   "yes (sequence), nothing checks it",
			Bound:   "session",
		},
		In: []Workload{W1, W2, W3, W4},
		Notes: map[Workload]string{
			W3: "the locks of a session live as long as it: one ping for all",
			W4: "its least session is two ticks, 4 s by default; counted from the last request that was sent; ends " +
				"are rounded up to a tick",
		},
		Modules: []string{"github.com/go-zookeeper/zk"},
		Open:    openZooKeeper,
	}
}

type zooKeeperClient struct {
	*counter
	config  Config
	conn    *zk.Conn
	timeout time.Duration
}

// Ticks of the server: its default, and for short runs. Its shortest session is two ticks.
const (
	ZooKeeperTick      = 2 * time.Second
	ZooKeeperTickSmoke = 300 * time.Millisecond
)

func openZooKeeper(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	tick := ZooKeeperTick
	if c.Smoke {
		tick = ZooKeeperTickSmoke
	}
	timeout := min(max(2*tick, c.TTL), 20*tick) // the server's bounds
	conn, events, err := zk.Connect([]string{c.Address}, timeout, zk.WithLogInfo(false), zk.WithLogger(silent{}),
		zk.WithDialer(func(network, address string, timeout time.Duration) (net.Conn, error) {
			conn, err := net.DialTimeout(network, address, timeout)
			if err != nil {
				return nil, err
			}
			return &writeConn{conn, counted}, nil
		}))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return &zooKeeperClient{counted, c, conn, timeout}, nil
			}
		case <-ctx.Done():
			conn.Close()
			return nil, fmt.Errorf("no session with ZooKeeper at %s: %w", c.Address, context.Cause(ctx))
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// writeConn counts writes, of which the client makes one for each request.
type writeConn struct {
	net.Conn
	counted *counter
}

func (c *writeConn) Write(b []byte) (int, error) {
	c.counted.add(1)
	return c.Conn.Write(b)
}

// Caller takes a Lock for each acquisition. Only the end of the connection makes it stop waiting, so a wait that ctx
// ends continues in the background until Close.
func (c *zooKeeperClient) Caller(context.Context) (Caller, error) {
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		l := zk.NewLock(c.conn, "/"+strings.ReplaceAll(name, "/", "-"), zk.WorldACL(zk.PermAll))
		got := make(chan error, 1)
		go func() { got <- l.Lock() }()
		select {
		case err := <-got:
			if err != nil {
				return nil, err
			}
			return func(context.Context) error { return l.Unlock() }, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}), nil
}

// Expiry counts the session's timeout from the last request.
func (c *zooKeeperClient) Expiry(_ context.Context, d Death) (time.Time, error) {
	return d.LastSent.Add(c.timeout), nil
}

func (c *zooKeeperClient) Close(context.Context) error {
	c.conn.Close()
	return nil
}
