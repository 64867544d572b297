package server

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// silence is the address of a server that takes connections and says nothing.
func silence(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nobody accepts
	return l.Addr().String()
}

// A leader that is silent and one that is still a standby: a client is connected soon after that takes writes, and long
// before a dial is given up.
func TestASilentServerHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
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
			config, err := pgxpool.ParseConfig(strings.Replace(db.URL(), address, url(address), 1))
			if err != nil {
				t.Fatal(err)
			}
			refusals.Store(0)
			config.ConnConfig.ValidateConnect = func(context.Context, *pgconn.PgConn) error {
				if refusals.Add(1) <= 2 {
					return refuses
				}
				return nil
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			s := New(pool, "pglock", nil, errors.New("closed"))
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			conn, err := s.Connect(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if got := conn.PgConn().Conn().RemoteAddr().String(); got != address || refusals.Load() != 3 {
				t.Errorf("connected to %s, want %s; %d attempts", got, address, refusals.Load())
			}
			if err := conn.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// Where every server refuses nobody waits.
func TestServersThatAllRefuseAreNotAskedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	at := db.Conn(t).Config()
	own := address(at.Host, at.Port)
	config, err := pgxpool.ParseConfig(strings.Replace(db.URL(), own, "127.0.0.1:1,"+own, 1))
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	refuses := errors.New("a standby")
	config.ConnConfig.ValidateConnect = func(context.Context, *pgconn.PgConn) error { asked.Add(1); return refuses }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := New(pool, "pglock", nil, errors.New("closed"))
	defer s.Close()
	_, err = s.Connect(t.Context())
	if !errors.Is(err, refuses) || !strings.Contains(err.Error(), "127.0.0.1:1") || asked.Load() != 1 ||
		!NeverSent(err) {
		t.Errorf("%v after %d attempts, want what both have answered", err, asked.Load())
	}
}
