package migrating_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/examples/migrating/fromadvisory"
	"github.com/pglock-dev/pglock/examples/migrating/frometcd"
	"github.com/pglock-dev/pglock/examples/migrating/fromredislock"
	"github.com/pglock-dev/pglock/examples/migrating/fromredsync"
	"github.com/pglock-dev/pglock/examples/migrating/fromshedlock"
	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/pglock"
)

// A program is called by one process, again and again.
type program func(ctx context.Context) error

// A change is the programs before, during and after; each call of a function is one process more.
type change struct{ before, during, after func() program }

// errBusy makes the tests ask a program again that does nothing while somebody else holds the lock.
var errBusy = errors.New("somebody else holds the lock")

func trying(try func(ctx context.Context) (bool, error)) program {
	return func(ctx context.Context) error {
		done, err := try(ctx)
		if err == nil && !done {
			return errBusy
		}
		return err
	}
}

// changes are all of them, each with what it needs.
var changes = map[string]func(t *testing.T) (*scene, change){
	"advisory lock": func(t *testing.T) (*scene, change) {
		s := newScene(t)
		return s, change{
			before: func() program {
				return func(ctx context.Context) error { return fromadvisory.LockBefore(ctx, s.pool) }
			},
			during: func() program {
				b := s.bridge()
				return func(ctx context.Context) error { return fromadvisory.LockDuring(ctx, b) }
			},
			after: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromadvisory.LockAfter(ctx, c, s.store) }
			},
		}
	},
	"advisory try": func(t *testing.T) (*scene, change) {
		s := newScene(t)
		return s, change{
			before: func() program {
				return trying(func(ctx context.Context) (bool, error) { return fromadvisory.TryBefore(ctx, s.pool) })
			},
			during: func() program {
				b := s.bridge()
				return trying(func(ctx context.Context) (bool, error) { return fromadvisory.TryDuring(ctx, b) })
			},
			after: func() program {
				c := s.client()
				return trying(func(ctx context.Context) (bool, error) { return fromadvisory.TryAfter(ctx, c, s.store) })
			},
		}
	},
	"advisory transaction": func(t *testing.T) (*scene, change) {
		s := newScene(t)
		return s, change{
			before: func() program {
				return func(ctx context.Context) error { return fromadvisory.TxBefore(ctx, s.pool) }
			},
			during: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromadvisory.TxDuring(ctx, c, s.store) }
			},
			after: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromadvisory.LockAfter(ctx, c, s.store) }
			},
		}
	},
	"ShedLock table": func(t *testing.T) (*scene, change) {
		s, n := newScene(t, fromshedlock.Schema), 0
		me := func() string { n++; return fmt.Sprint("host ", n) }
		return s, change{
			before: func() program {
				me := me()
				return trying(func(ctx context.Context) (bool, error) { return fromshedlock.Before(ctx, s.pool, me) })
			},
			during: func() program {
				me, c, night := me(), s.client(), 0
				return trying(func(ctx context.Context) (bool, error) {
					night++ // each time another
					return fromshedlock.During(ctx, c, s.store, s.pool, me, fmt.Sprint(me, " ", night))
				})
			},
			after: func() program {
				me, c, night := me(), s.client(), 0
				return trying(func(ctx context.Context) (bool, error) {
					night++
					return fromshedlock.After(ctx, c, s.store, fmt.Sprint(me, " ", night))
				})
			},
		}
	},
	"redislock": func(t *testing.T) (*scene, change) {
		s, locker := newScene(t), redislock.New(newRedis(t))
		return s, change{
			before: func() program {
				return func(ctx context.Context) error { return fromredislock.Before(ctx, locker, s.pool) }
			},
			during: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromredislock.During(ctx, c, s.store, locker) }
			},
			after: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromadvisory.LockAfter(ctx, c, s.store) }
			},
		}
	},
	"redsync": func(t *testing.T) (*scene, change) {
		s, locks := newScene(t), redsync.New(goredis.NewPool(newRedis(t)))
		return s, change{
			before: func() program {
				return func(ctx context.Context) error { return fromredsync.Before(ctx, locks, s.pool) }
			},
			during: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromredsync.During(ctx, c, s.store, locks) }
			},
			after: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromadvisory.LockAfter(ctx, c, s.store) }
			},
		}
	},
	"etcd": func(t *testing.T) (*scene, change) {
		s, etcd := newScene(t), newEtcd(t)
		return s, change{
			before: func() program {
				return func(ctx context.Context) error { return frometcd.MutexBefore(ctx, etcd, s.pool) }
			},
			during: func() program {
				c := s.client()
				return func(ctx context.Context) error { return frometcd.MutexDuring(ctx, c, s.store, etcd) }
			},
			after: func() program {
				c := s.client()
				return func(ctx context.Context) error { return fromadvisory.LockAfter(ctx, c, s.store) }
			},
		}
	},
	"etcd election": func(t *testing.T) (*scene, change) {
		s, etcd, n := newScene(t), newEtcd(t), 0
		me := func() string { n++; return fmt.Sprint("host ", n) }
		write := func(ctx context.Context, lease *pglock.Lease) error {
			return s.store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
				return report.Write(ctx, tx)
			})
		}
		return s, change{
			before: func() program {
				me := me()
				return func(ctx context.Context) error {
					return frometcd.ElectionBefore(ctx, etcd, me, func(ctx context.Context) error {
						return report.Write(ctx, s.pool)
					})
				}
			},
			during: func() program {
				me, c := me(), s.client()
				return func(ctx context.Context) error { return frometcd.ElectionDuring(ctx, c, etcd, me, write) }
			},
			after: func() program {
				me, c := me(), s.client()
				return func(ctx context.Context) error { return frometcd.ElectionAfter(ctx, c, me, write) }
			},
		}
	},
}

func (s *scene) bridge() *advisory.Bridge {
	s.t.Helper()
	b, err := advisory.New(s.client(), advisory.Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// In a rolling change the programs before and during run together, and later those during and after. Each of them
// adds pages to one report, by reading and then writing: two that hold at the same time lose pages.
func TestNoTwoProgramsOfARollingChangeHoldTogether(t *testing.T) {
	for name, make := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, programs := make(t)
			want := 0
			for _, phase := range [][]func() program{
				{programs.before}, {programs.before, programs.during},
				{programs.during, programs.after}, {programs.after},
			} {
				want += s.together(phase)
				if pages := s.pages(); pages != want {
					t.Fatalf("the report has %d pages, want %d", pages, want)
				}
			}
		})
	}
}

// together runs two processes of each kind, and says how often they have worked.
func (s *scene) together(kinds []func() program) (worked int) {
	s.t.Helper()
	const processes, turns = 2, 8
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*patience)
	defer cancel()
	var all sync.WaitGroup
	for _, kind := range kinds {
		for range processes {
			run := kind()
			all.Go(func() {
				for range turns {
					err := run(ctx)
					for errors.Is(err, errBusy) && ctx.Err() == nil {
						time.Sleep(time.Millisecond) // as a scheduler would, but sooner
						err = run(ctx)
					}
					if err != nil {
						s.t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	return len(kinds) * processes * turns
}

func TestObserversSeeWhoLeads(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	watching, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, watched, watcher := make(chan string, 10), make(chan error, 1), s.client()
	go func() {
		watched <- frometcd.Leader(watching, watcher, func(name string) { seen <- name })
	}()
	see := func(want string) {
		t.Helper()
		for {
			select {
			case name := <-seen:
				if name == want {
					return
				}
			case <-time.After(patience):
				t.Fatalf("nobody tells that %q leads", want)
			}
		}
	}
	see("")
	err := frometcd.ElectionAfter(t.Context(), s.client(), "b", func(ctx context.Context, lease *pglock.Lease) error {
		see("b")
		return lease.Err()
	})
	if err != nil {
		t.Error(err)
	}
	see("")
	cancel()
	if err := <-watched; err != nil {
		t.Error(err)
	}
}

// The row stays locked then until its lock_until.
func TestAShedLockJobEndsSoonAlsoIfNobodyAnswersItsUnlock(t *testing.T) {
	t.Parallel()
	s := newScene(t, fromshedlock.Schema, `CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$;
		CREATE TRIGGER hang BEFORE UPDATE ON shedlock FOR EACH ROW WHEN (NEW.lock_until < OLD.lock_until)
		EXECUTE FUNCTION hang()`)
	client, ended := s.client(), make(chan error, 1)
	go func() {
		_, err := fromshedlock.During(t.Context(), client, s.store, s.pool, "a", "2026-03-01")
		ended <- err
	}()
	select {
	case err := <-ended:
		if pages := s.pages(); err != nil || pages != 1 {
			t.Errorf("the report has %d pages, %v, want 1", pages, err)
		}
	case <-time.After(patience):
		t.Errorf("the program still waits for its unlock after %v", patience)
		const answer = `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event = 'PgSleep'`
		if _, err := s.pool.Exec(t.Context(), answer); err != nil {
			t.Error(err)
		}
		<-ended
	}
}

// Whichever of the two releases is first.
func TestAShedLockJobRunsOnceANight(t *testing.T) {
	t.Parallel()
	s := newScene(t, fromshedlock.Schema)
	during := func(night string) (bool, error) {
		return fromshedlock.During(t.Context(), s.client(), s.store, s.pool, "a", night)
	}
	after := func(night string) (bool, error) {
		return fromshedlock.After(t.Context(), s.client(), s.store, night)
	}
	for night, programs := range map[string][]func(string) (bool, error){
		"2026-03-01": {during, after, during}, "2026-03-02": {after, during, after},
	} {
		for n, program := range programs {
			if done, err := program(night); err != nil || done != (n == 0) {
				t.Errorf("%s, call %d: done %v, %v, want %v", night, n, done, err, n == 0)
			}
		}
	}
	if pages := s.pages(); pages != 2 {
		t.Errorf("the report of two nights has %d pages, want 2", pages)
	}
}
