package drivers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// A way is one way to write, for the tests that hold for all of them.
type way struct {
	name string
	open func(t *testing.T, s *scene) deposit
}

// deposit pays the amounts into the account in one fenced transaction, with a statement for each, and then calls last,
// still inside; an error of last rolls back.
type deposit func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error

var ways = []way{
	gormWay, gormPreparedWay, gormSimpleWay, bunWay, entWay, sqlcSQLWay,
	sqlPGXWay, sqlPQWay, sqlPQBinaryWay,
	poolWay, funcWay,
	sqlcStoreWay, sqlcGuardWay,
}

func forEveryWay(t *testing.T, test func(t *testing.T, s *scene, d deposit)) {
	t.Helper()
	t.Parallel()
	shared := newScene(t)
	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := shared.with(t, int64(100+i))
			test(t, s, w.open(t, s))
		})
	}
}

func nothing() error { return nil }

func TestWriteUnderALiveLeaseIsCommittedWithAllItsStatements(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease := s.lease(t)
		must.Do(t, d(t.Context(), lease, []int64{10, 20, 30}, nothing))
		s.has(t, 60)
		var token pglock.Token
		if err := s.pool.QueryRow(t.Context(), `SELECT last_token FROM pglock.list_fences($1)`,
			s.lock).Scan(&token); err != nil {
			t.Fatal(err)
		}
		if token != lease.Token() {
			t.Errorf("token %d stands at the fence, want %d", token, lease.Token())
		}
	})
}

func TestI3_OvertakenWriterIsToldWhichTokenStandsAtTheFence(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease := s.lease(t)
		want := fencedstore.StaleTokenError{Resource: s.lock, Token: lease.Token(), LastToken: s.overtake(t)}
		err := d(t.Context(), lease, []int64{60}, nothing)
		var stale *fencedstore.StaleTokenError
		if !errors.As(err, &stale) || *stale != want {
			t.Errorf("the overtaken write answered %v, want %v", err, &want)
		}
		s.has(t, 1000)
	})
}

func TestI3_OneGrantWritesOnceUnlessItIsAllowedMore(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease := s.lease(t)
		must.Do(t, d(t.Context(), lease, []int64{60}, nothing))
		err := d(t.Context(), lease, []int64{60}, nothing)
		var stale *fencedstore.StaleTokenError
		if !errors.As(err, &stale) || stale.LastToken != lease.Token() {
			t.Errorf("the second write answered %v, want its own token to be stale", err)
		}
		s.has(t, 60)
		if err := d(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true}, []int64{60}, nothing); err != nil {
			t.Errorf("AllowSameToken: %v", err)
		}
		s.has(t, 120)
	})
}

func TestI10_BrokenLeaseIsRefusedAtTheFenceWithItsReason(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease := s.lease(t)
		s.breakLock(t)
		isBroken(t, d(t.Context(), lease, []int64{60}, nothing), lease)
		s.has(t, 0)
	})
}

func TestI10_LeaseBrokenInsideTheTransactionIsRefusedAtItsCommit(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease := s.lease(t)
		reached := false
		err := d(t.Context(), lease, []int64{10, 20, 30}, func() error {
			s.breakLock(t)
			reached = true
			return nil
		})
		if !reached {
			t.Fatalf("the transaction did not come as far as its COMMIT: %v", err)
		}
		isBroken(t, err, lease)
		s.has(t, 0)
		s.succeed(t) // for whom no fence is in the way
		s.has(t, 1000)
	})
}

// isBroken fails the test unless err is the loss of the lease by a break.
func isBroken(t *testing.T, err error, lease *pglock.Lease) {
	t.Helper()
	var lost *pglock.LostError
	if !errors.Is(err, pglock.ErrLost) || !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken ||
		lost.Token != lease.Token() {
		t.Errorf("the write answered %v, want the loss of token %d by a break", err, lease.Token())
	}
}

// The lease is renewed meanwhile: the limit is of the transaction, and the next holder need not wait for a hung one.
func TestI16_TransactionThatHangsPastItsLeaseIsRolledBack(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease, reached := s.leaseOf(t, 3*time.Second), false
		err := d(t.Context(), lease, []int64{60}, func() error {
			reached = true
			s.isLeftAlone(t)
			return nil
		})
		if err == nil || !reached {
			t.Errorf("the hung write answered %v; it wrote: %v", err, reached)
		}
		s.has(t, 0)
	})
}

func TestErrorOfTheWriteComesBackAndLeavesNothing(t *testing.T) {
	forEveryWay(t, func(t *testing.T, s *scene, d deposit) {
		lease := s.lease(t)
		mine := errors.New("no such currency")
		if err := d(t.Context(), lease, []int64{60}, func() error { return mine }); !errors.Is(err, mine) {
			t.Errorf("the write answered %v, want %v", err, mine)
		}
		s.has(t, 0)
		if err := d(t.Context(), lease, []int64{60}, nothing); err != nil {
			t.Errorf("the fence kept the token of a write that was rolled back: %v", err)
		}
		s.has(t, 60)
	})
}
