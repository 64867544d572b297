package server

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// silence is the address of a server that takes connections and says nothing.
func silence(t *testing.T) string {
	t.Helper()
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() }) // nobody accepts
	return l.Addr().String()
}

// clientOf is a client's server by this connection string, whose connections must suit, unless suits is nil.
func clientOf(t *testing.T, url string, suits func() error) *Server {
	t.Helper()
	config := must.Get(pgxpool.ParseConfig(url))(t)
	if suits != nil {
		config.ConnConfig.ValidateConnect = func(context.Context, *pgconn.PgConn) error { return suits() }
	}
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	s := New(pool, "pglock", nil, errors.New("closed"))
	t.Cleanup(s.Close)
	return s
}

// A leader that is silent and one that is still a standby: a client is connected soon after that takes writes, and long
// before a dial is given up.
func TestASilentServerHoldsUpNoOther(t *testing.T) {
	db := pgtest.Parallel(t)
	quiet := silence(t)
	var refusals atomic.Int32
	refuses := errors.New("a standby")
	for name, url := range map[string]func(at string) string{
		"the first":  func(at string) string { return quiet + "," + at },
		"the second": func(at string) string { return at + "," + quiet },
	} {
		t.Run(name, func(t *testing.T) {
			at := db.Conn(t).Config()
			address := address(at.Host, at.Port)
			refusals.Store(0)
			s := clientOf(t, strings.Replace(db.URL(), address, url(address), 1), func() error {
				if refusals.Add(1) <= 2 {
					return refuses
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			conn := must.Get(s.Connect(ctx, nil))(t)
			if got := conn.PgConn().Conn().RemoteAddr().String(); got != address || refusals.Load() != 3 {
				t.Errorf("connected to %s, want %s; %d attempts", got, address, refusals.Load())
			}
			must.Note(t, conn.Close(ctx))
		})
	}
}

// Where every server refuses nobody waits.
func TestServersThatAllRefuseAreNotAskedAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	at := db.Conn(t).Config()
	own := address(at.Host, at.Port)
	var asked atomic.Int32
	refuses := errors.New("a standby")
	s := clientOf(t, strings.Replace(db.URL(), own, "127.0.0.1:1,"+own, 1), func() error {
		asked.Add(1)
		return refuses
	})
	_, err := s.Connect(t.Context(), nil)
	if !errors.Is(err, refuses) || !strings.Contains(err.Error(), "127.0.0.1:1") || asked.Load() != 1 ||
		!NeverSent(err) {
		t.Errorf("%v after %d attempts, want what both have answered", err, asked.Load())
	}
}

// Where the connection string does not say which server it wants, the second may be a standby: the first is waited for,
// however slow it is.
func TestHostsKeepTheirOrderWhereAnyServerWillDo(t *testing.T) {
	db := pgtest.Parallel(t)
	at := db.Conn(t).Config()
	own := address(at.Host, at.Port)
	s := clientOf(t, strings.Replace(db.URL(), own, silence(t)+","+own, 1), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hostAlone)
	defer cancel()
	if conn, err := s.Connect(ctx, nil); err == nil {
		t.Errorf("connected to %s while the first server may still answer", conn.PgConn().Conn().RemoteAddr())
		_ = conn.Close(t.Context())
	}
}

// A standby is asked again over the same connection until it is promoted: also for longer than connect_timeout.
func TestAStandbyIsWaitedForOverOneConnection(t *testing.T) {
	db := pgtest.Parallel(t)
	at := db.Conn(t).Config()
	own := address(at.Host, at.Port)
	var asked atomic.Int32
	var pids [15]uint32
	s := clientOf(t, strings.Replace(db.URL(), own, "127.0.0.1:1,"+own, 1)+"&connect_timeout=3", nil)
	dialled := must.Get(s.connect(t.Context(), func(c *pgx.ConnConfig) {
		c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			n := asked.Add(1)
			if pids[n-1] = conn.PID(); int(n) < len(pids) {
				return errors.New("a standby")
			}
			return conn.Exec(ctx, "SELECT").Close()
		}
		waitForLeader(t.Context(), c)
	}))(t)
	pid := dialled.PgConn().PID()
	if slices.ContainsFunc(pids[:], func(asked uint32) bool { return asked != pid }) {
		t.Errorf("asked processes %d, connected to %d; want one", pids, pid)
	}
	must.Note(t, dialled.Close(t.Context()))
}
