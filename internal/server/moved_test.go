package server

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// pair is one server under two addresses, as if it were two. The first may fall silent.
type pair struct {
	*Server
	quiet   atomic.Bool   // the first says nothing more, to nobody
	dialled chan struct{} // how often the first was dialled
}

// quietConn loses what the server says while the first server is quiet.
type quietConn struct {
	net.Conn
	quiet *atomic.Bool
}

func (c *quietConn) Read(b []byte) (n int, err error) {
	for {
		if n, err = c.Conn.Read(b); err != nil || !c.quiet.Load() {
			return n, err
		}
	}
}

const firstHost, secondHost = "127.0.0.1:1", "127.0.0.1:2"

func startPair(t *testing.T) *pair {
	t.Helper()
	db := pgtest.Database(t)
	at := db.Conn(t).Config()
	own := address(at.Host, at.Port)
	config, err := pgxpool.ParseConfig(strings.Replace(db.URL(), own, firstHost+","+secondHost, 1) +
		"&target_session_attrs=read-write")
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{dialled: make(chan struct{}, 10)}
	config.ConnConfig.DialFunc = func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == firstHost {
			p.dialled <- struct{}{}
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, own)
		if err != nil || to != firstHost {
			return conn, err
		}
		return &quietConn{conn, &p.quiet}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p.Server = New(pool, "pglock", nil, context.Canceled)
	t.Cleanup(p.Close)
	return p
}

// leads is the server that the own connection leads to.
func (p *pair) leads(t *testing.T) string {
	t.Helper()
	loan, err := p.lender.Lend(t.Context(), lending.Own)
	if err != nil {
		t.Fatal(err)
	}
	defer loan.Give()
	at := loan.Conn.Config()
	return address(at.Host, at.Port)
}

// A leader is cut off in silence, and another server leads: the statement that waits for the first is answered by the
// other long before it is given up.
func TestASilentLeaderIsLeftForAnother(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	who := protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute}
	if err := p.Sign(t.Context(), time.Second, who); err != nil || p.leads(t) != firstHost {
		t.Fatalf("%v, at %s", err, p.leads(t))
	}
	p.quiet.Store(true)
	began := time.Now()
	err := p.Sign(t.Context(), time.Second, who)
	if took := time.Since(began); err != nil || took > protocol.Patience/2 || p.leads(t) != secondHost {
		t.Errorf("%v after %v, at %s", err, took, p.leads(t))
	}
}

// A leader that is only slow is not left: a new connection leads to the same one.
func TestASlowLeaderIsNotLeft(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	err := p.lent(t.Context(), time.Second, lending.OwnFirst,
		func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
			<-p.dialled // for this loan
			<-p.dialled // while it takes long
			_, err := simply(ctx, loan.Conn, "select pg_catalog.pg_sleep(0.5)")
			return err
		})
	if err != nil || p.leads(t) != firstHost {
		t.Errorf("%v, at %s", err, p.leads(t))
	}
}
