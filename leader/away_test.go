package leader_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// line is the way to the server, which a test can cut.
type line struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func (l *line) cut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.isCut = cut; cut && len(l.conns) > 0; l.conns = l.conns[1:] {
		_ = l.conns[0].Close()
	}
}

// over changes a configuration so that its connections go over the line.
func (l *line) over(c *pgxpool.Config) {
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.isCut && err == nil {
			_ = conn.Close()
			err = syscall.ECONNREFUSED
		}
		if err == nil {
			l.conns = append(l.conns, conn)
		}
		return conn, err
	}
}

// A fence refuses the work of a leader that has lost its lease, and then the server does not answer the release.
func TestALossThatAFenceHasNoticedEndsNoRunWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	store := fencedstore.New(e.pool)
	var way line
	config := e.pool.Config()
	way.over(config)
	e.pool = must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(e.pool.Close)
	m := e.join("a", false, leader.WithTTL(time.Hour))
	now := m.leads()
	e.breaks()
	err := store.Write(t.Context(), now.lease, func(context.Context, pgx.Tx) error { return nil })
	if !errors.Is(err, pglock.ErrLost) {
		t.Fatalf("a write under a lease that is lost: %v", err)
	}
	way.cut(true)
	now.returns <- err
	e.eventually("the end of the release", func() bool {
		return m.Status().Err != nil || m.Status().State == leader.StateIdle
	})
	way.cut(false)
	if s := m.Status(); s.State != leader.StateCampaigning || !errors.Is(s.Err, pglock.ErrLost) {
		t.Fatalf("the old leader says of itself: %+v", s)
	}
	if again := m.leads(); again.lease.Token() <= now.lease.Token() {
		t.Errorf("%v leads after %v", again.lease, now.lease)
	}
}
