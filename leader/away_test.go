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
	"github.com/pglock-dev/pglock/lockadmin"
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
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.isCut {
			return nil, syscall.ECONNREFUSED
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			l.conns = append(l.conns, conn)
		}
		return conn, err
	}
}

// awayLeader is a leader that can be cut off from the server. Others are not, who were made before it.
func awayLeader(t *testing.T, e *election) (m *member, now *term, way *line) {
	t.Helper()
	way = new(line)
	config := e.pool.Config()
	way.over(config)
	e.pool = must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(e.pool.Close)
	m = e.join("a", false, leader.WithTTL(time.Hour))
	return m, m.leads(), way
}

func nothing(context.Context, pgx.Tx) error { return nil }

// A fence refuses the work of a leader that has lost its lease, and then the server does not answer the release.
func TestALossThatAFenceHasNoticedEndsNoRunWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refusal error
		succeed bool  // another leads meanwhile, and writes first
		also    error // what fn tells of besides
	}{
		"nobody has written":        {refusal: pglock.ErrLost},
		"another lock is lost, too": {refusal: pglock.ErrLost, also: &pglock.LostError{Lock: "y", Token: 1}},
		"the successor has written": {refusal: fencedstore.ErrStaleToken, succeed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			store, other := fencedstore.New(e.pool), e.client()
			m, now, way := awayLeader(t, e)
			e.breaks()
			if c.succeed {
				lease := must.Get(other.Acquire(t.Context(), "x"))(t)
				must.Do(t, store.Write(t.Context(), lease, nothing))
				must.Do(t, lease.Release(t.Context()))
			}
			err := store.Write(t.Context(), now.lease, nothing)
			if !errors.Is(err, c.refusal) {
				t.Fatalf("a write under a lease that is lost: %v", err)
			}
			way.cut(true)
			now.returns <- errors.Join(c.also, err)
			e.eventually("the end of the release", func() bool {
				return m.Status().Err != nil || m.Status().State == leader.StateIdle
			})
			way.cut(false)
			if s := m.Status(); s.State != leader.StateCampaigning || !errors.Is(s.Err, c.refusal) {
				t.Fatalf("the old leader says of itself: %+v", s)
			}
			if again := m.leads(); again.lease.Token() <= now.lease.Token() {
				t.Errorf("%v leads after %v", again.lease, now.lease)
			}
		})
	}
}

// The work of a leader loses another lock and fails, and then the server does not answer the release.
func TestTheLossOfAnotherLockEndsRunWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	store, other := fencedstore.New(e.pool), e.client()
	lease := must.Get(other.Acquire(t.Context(), "y"))(t)
	m, now, way := awayLeader(t, e)
	must.Get(e.admin.Break(t.Context(), "y", "a test", lockadmin.BreakOptions{}))(t)
	err := store.Write(t.Context(), lease, nothing)
	if !errors.Is(err, pglock.ErrLost) {
		t.Fatalf("a write under a lease that is lost: %v", err)
	}
	way.cut(true)
	now.returns <- err
	e.eventually("the end of the release", func() bool {
		return m.Status().Err != nil || m.Status().State == leader.StateIdle
	})
	way.cut(false)
	if ended := m.ends(); !errors.Is(ended, err) {
		t.Errorf("Run: %v, want %v", ended, err)
	}
}
