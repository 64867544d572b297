package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// texts is a list in words.
func texts[T any](t *testing.T, list iter.Seq2[T, error], text func(T) string) []string {
	t.Helper()
	all := must.Get(lists.All(list))(t)
	var words []string
	for _, one := range all {
		words = append(words, text(one))
	}
	return words
}

// crowded is a database with locks of all modes, queues, fences and a history.
func crowded(t *testing.T) *lockadmin.Admin {
	t.Helper()
	db := pgtest.Database(t)
	conn := db.Conn(t)
	execute(t, conn,
		`SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'h', '1 h') FROM unnest('{a,b,c}'::text[]) n`)
	for range 3 {
		execute(t, conn,
			`SELECT pglock.acquire_lease('readers', gen_random_uuid(), gen_random_uuid(), 'r', '1 h', p_mode => 'shared')`)
	}
	for i := range 7 {
		execute(t, conn,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 h', p_wait => true, p_session_ttl => '1 h')`,
			[]string{"a", "b"}[i%2], fmt.Sprint("w", i))
	}
	for i := range 5 {
		execute(t, conn, `SELECT pglock.break_lock('c', $1, 'me')`, fmt.Sprint("break ", i))
		execute(t, conn, `SELECT pglock.fence('c', l.token, l.grant_id, $1)
			FROM (SELECT (pglock.acquire_lease('c', g, gen_random_uuid(), 'h', '1 h')).token, g AS grant_id FROM gen_random_uuid() g) l`, fmt.Sprint("resource ", i))
	}
	return newAdmin(t, db.Pool(t))
}

func TestEveryListIsTheSameFromPagesOfAnySize(t *testing.T) {
	t.Parallel()
	admin := crowded(t)
	all := map[string]struct {
		length int
		list   func(size int) []string
	}{
		"locks": {6, func(size int) []string {
			return texts(t, admin.Locks(t.Context(), lockadmin.LocksQuery{PageSize: size}),
				func(l pglock.LockInfo) string {
					return fmt.Sprint(l.Name, l.Slot, l.Token, l.Waiting)
				})
		}},
		"waiters": {7, func(size int) []string {
			return texts(t, admin.Waiters(t.Context(), lockadmin.WaitersQuery{PageSize: size}),
				func(w lockadmin.Waiter) string {
					return fmt.Sprint(w.Lock, w.Ticket, w.Place, w.Holder, w.Behind, w.Before)
				})
		}},
		"waiters of a lock": {4, func(size int) []string {
			return texts(t, admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: "a", PageSize: size}),
				func(w lockadmin.Waiter) string {
					return fmt.Sprint(w.Ticket, w.Place)
				})
		}},
		"events": {5, func(size int) []string {
			return texts(t, admin.History(t.Context(), lockadmin.HistoryQuery{PageSize: size}),
				func(e lockadmin.HistoryEntry) string {
					return fmt.Sprint(e.ID, e.Kind, e.Reason)
				})
		}},
		"events of a lock": {5, func(size int) []string {
			return texts(t, admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "c", PageSize: size}),
				func(e lockadmin.HistoryEntry) string {
					return fmt.Sprint(e.ID, e.Kind, e.Reason)
				})
		}},
		"fences": {5, func(size int) []string {
			return texts(t, admin.Fences(t.Context(), lockadmin.FencesQuery{PageSize: size}),
				func(f lockadmin.FenceInfo) string {
					return fmt.Sprint(f.Resource, f.LastToken, f.Lock)
				})
		}},
		"fences of a lock": {5, func(size int) []string {
			return texts(t, admin.Fences(t.Context(), lockadmin.FencesQuery{Lock: "c", PageSize: size}),
				func(f lockadmin.FenceInfo) string {
					return fmt.Sprint(f.Resource, f.LastToken, f.Lock)
				})
		}},
	}
	for name, l := range all {
		whole := l.list(0)
		if len(whole) != l.length {
			t.Errorf("%s: %q, want %d", name, whole, l.length)
		}
		for size := 1; size <= l.length+1; size++ {
			if got := l.list(size); !slices.Equal(got, whole) {
				t.Errorf("%s, %d at a time: %q, want %q", name, size, got, whole)
			}
		}
	}
	places := texts(t, admin.Waiters(t.Context(), lockadmin.WaitersQuery{PageSize: 3}),
		func(w lockadmin.Waiter) string {
			return fmt.Sprint(w.Lock, w.Place)
		})
	if want := []string{"a1", "a2", "a3", "a4", "b1", "b2", "b3"}; !slices.Equal(places, want) {
		t.Errorf("places %q, want %q", places, want)
	}
	events := texts(t, admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "c"}),
		func(e lockadmin.HistoryEntry) string {
			return e.Reason
		})
	if want := []string{"break 4", "break 3", "break 2", "break 1", "break 0"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want the newest first", events)
	}
}

func TestALoopThatEndsEarlyReadsNoFurther(t *testing.T) {
	t.Parallel()
	admin := crowded(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range admin.Locks(ctx, lockadmin.LocksQuery{PageSize: 2}) {
		if n++; n == 2 {
			cancel()
		}
		if n == 3 && !errors.Is(err, context.Canceled) || n > 3 {
			t.Fatalf("%d: %v; want the end of ctx, and then nothing", n, err)
		}
	}
	if n != 3 {
		t.Errorf("%d turns of the loop, want 3", n)
	}
	for range admin.Locks(t.Context(), lockadmin.LocksQuery{PageSize: 1}) {
		break
	}
}
