package reversible_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/pglock"
)

// line is the way of a pool's connections to the server.
type line struct {
	mu      sync.Mutex
	cut     bool
	refused int // dials since it was cut
	mendAt  int // after so many refused dials it is mended; 0: never
	conns   []net.Conn
}

func (l *line) use(c *pgxpool.Config) {
	var d net.Dialer
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.cut {
			l.refused++
			l.cut = l.refused != l.mendAt
			return nil, errors.New("the line is cut")
		}
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil {
			l.conns = append(l.conns, conn)
		}
		return conn, err
	}
}

func (l *line) sever(mendAt int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.mendAt = true, mendAt
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func TestUnansweredCheckIsRepeatedUntilTheServerAnswers(t *testing.T) {
	t.Parallel()
	l := &line{}
	s := newStage(t, l.use)
	var calls []string
	err := reversible.Run(t.Context(), s.lease, told(&calls, func(context.Context) error {
		l.sever(4)
		return nil
	}, nil))
	if err != nil {
		t.Errorf("%v, although the lease was held", err)
	}
	wantCalls(t, calls, "capture apply")
	if l.refused < 4 {
		t.Errorf("%d dials were refused", l.refused)
	}
}

func TestI7_OperationWhoseCheckIsNeverAnsweredIsUndoneAtTheLocalDeadline(t *testing.T) {
	t.Parallel()
	l := &line{}
	s := newStage(t, l.use, pglock.WithTTL(5*time.Second))
	var calls []string
	var deadline time.Time
	err := reversible.Run(t.Context(), s.lease, told(&calls, func(context.Context) error {
		l.sever(0)
		deadline = s.lease.Deadline()
		return nil
	}, func(ctx context.Context) error {
		if s.lease.Valid() || time.Now().Before(deadline.Add(-time.Millisecond)) {
			t.Error("undone while the lease was trusted")
		}
		return ctx.Err()
	}))
	if !errors.Is(err, pglock.ErrLost) || !errors.Is(err, reversible.ErrUndone) ||
		!strings.Contains(err.Error(), "the line is cut") {
		t.Errorf("%v, want ErrLost and ErrUndone", err)
	}
	wantCalls(t, calls, "capture apply restore")
}

// The heartbeat goes on while no check is answered: the operation does not wait for that.
func TestI7_OperationIsUndoneAtTheDeadlineOfItsEndThoughTheLeaseGoesOn(t *testing.T) {
	t.Parallel()
	s := newStage(t, unchanged, pglock.WithTTL(8*time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var calls []string
	held := false
	err := reversible.Run(ctx, s.lease, told(&calls, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `CREATE OR REPLACE FUNCTION pglock.check_leases(
				p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[])
			RETURNS TABLE (n bigint, reason text, expires_at timestamptz, remaining_us bigint)
			LANGUAGE sql AS 'SELECT 1::bigint, NULL, now(), 1::bigint FROM pg_sleep(60)'`)
		return err
	}, func(context.Context) error {
		held = s.lease.Valid()
		return nil
	}))
	if !errors.Is(err, reversible.ErrUnconfirmed) || !errors.Is(err, reversible.ErrUndone) || !held {
		t.Errorf("%v, held is %v; want ErrUnconfirmed and ErrUndone while it is held", err, held)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is taken for a timeout of the caller's, whose context lives", err)
	}
	wantCalls(t, calls, "capture apply restore")
}

// An operation that took longer than its lease is undone without a question, and the error says so.
func TestI7_OperationThatOutlastedItsLeaseIsUndoneUnasked(t *testing.T) {
	t.Parallel()
	l := &line{}
	s := newStage(t, l.use, pglock.WithTTL(3*time.Second))
	var calls []string
	err := reversible.Run(t.Context(), s.lease, told(&calls, func(context.Context) error {
		l.sever(0) // nobody renews the lease
		<-s.lease.Context().Done()
		return nil
	}, nil))
	if !errors.Is(err, pglock.ErrLost) || !errors.Is(err, reversible.ErrUndone) ||
		!strings.Contains(err.Error(), "no time was left") {
		t.Errorf("%v, want ErrLost and ErrUndone, and that nobody was asked", err)
	}
	wantCalls(t, calls, "capture apply restore")
}
