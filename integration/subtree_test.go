package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// kindsOfLeases are the kinds of the tables in docs/locks.md.
var kindsOfLeases = map[string][]pglock.AcquireOption{
	"exclusive":         nil,
	"shared":            {pglock.WithShared()},
	"limit":             {pglock.WithLimit(2)},
	"exclusive subtree": {pglock.WithSubtree()},
	"shared subtree":    {pglock.WithSubtree(), pglock.WithShared()},
}

// cellsOf are the cells of the table in docs/locks.md whose head begins so: row and column, and whether both may be
// held.
func cellsOf(t *testing.T, head string) map[[2]string]bool {
	t.Helper()
	page := must.Get(os.ReadFile("../docs/locks.md"))(t)
	_, table, found := strings.Cut(string(page), "| "+head+" | ")
	if !found {
		t.Fatalf("docs/locks.md has no table %q", head)
	}
	all := make(map[[2]string]bool)
	var columns []string
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		switch {
		case columns == nil:
			columns = cells
			continue
		case cells[0] == "---":
			continue
		case len(cells) != len(columns)+1:
			if len(all) != len(kindsOfLeases)*len(kindsOfLeases) {
				t.Fatalf("table %q has %d cells", head, len(all))
			}
			return all
		}
		for i, cell := range cells[1:] {
			if cell != "one" && cell != "both" {
				t.Fatalf("table %q says %q", head, cell)
			}
			all[[2]string{cells[0], columns[i]}] = cell == "both"
		}
	}
	return all
}

// The tables of docs/locks.md, pair by pair, in both orders, at depths of 1, 2 and 10.
func TestTheTablesOfSubtreesAreTrue(t *testing.T) {
	db := pgtest.Parallel(t)
	one, other := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	both := func(first, second, firstName, secondName string) bool {
		a := mustTry(t, one, firstName, kindsOfLeases[first]...)
		b, err := other.TryAcquire(t.Context(), secondName, kindsOfLeases[second]...)
		if err != nil && !errors.Is(err, pglock.ErrHeld) && !errors.Is(err, pglock.ErrLimit) {
			t.Fatalf("%s at %s while %s at %s: %v", second, secondName, first, firstName, err)
		}
		if mustRelease(t, a); err == nil {
			mustRelease(t, b)
		}
		return err == nil
	}
	n := 0
	for cell, want := range cellsOf(t, "above, down; below, across") {
		for _, depth := range []int{1, 2, 10} {
			n++
			above := fmt.Sprintf("above %d", n)
			below := above + strings.Repeat("/x", depth)
			if got := both(cell[0], cell[1], above, below); got != want {
				t.Errorf("%s, then %s %d below: both %v, want %v", cell[0], cell[1], depth, got, want)
			}
			if got := both(cell[1], cell[0], below, above); got != want {
				t.Errorf("%s %d below, then %s: both %v, want %v", cell[1], depth, cell[0], got, want)
			}
		}
	}
	for cell, want := range cellsOf(t, "the same name") {
		n++
		if got := both(cell[0], cell[1], fmt.Sprint("same ", n), fmt.Sprint("same ", n)); got != want {
			t.Errorf("%s, then %s of the same name: both %v, want %v", cell[0], cell[1], got, want)
		}
	}
}

// Names that only look alike are not below one another: a prefix without a slash, wildcards, other letters.
func TestOnlyWhatFollowsASlashIsBelow(t *testing.T) {
	t.Parallel()
	inOrders(t, onlyBelow)
}

func onlyBelow(t *testing.T, url string) {
	t.Helper()
	one, other := newClient(t, newPool(t, url)), newClient(t, newPool(t, url))
	long := strings.Repeat("é", 254)
	beside := []string{"a", "a/bc", "a/b0", "a/b.", "a/b-", "a/B", "A/b", "a/b ", "a/bé", "axy/z",
		"a_%x/y", "a_x/y", long, long + "/y", long + "/xy"}
	below := map[string][]string{
		"a/b": {"a/b/", "a/b//", "a/b/c", "a/b/é", "a/b/\U0010ffff", "a/b/%"}, "a_%": {"a_%/y"},
		long + "/x": {long + "/x/"},
	}
	held := map[string]*pglock.Lease{}
	for name := range below {
		held[name] = mustTry(t, one, name, pglock.WithSubtree())
	}
	var others []*pglock.Lease
	for _, name := range beside {
		others = append(others, mustTry(t, other, name))
	}
	for top, names := range below {
		for _, name := range append(names, top) {
			if _, err := other.TryAcquire(t.Context(), name); !errors.Is(err, pglock.ErrHeld) {
				t.Errorf("%q: %v, want ErrHeld", name, err)
			}
		}
		mustRelease(t, held[top])
		for _, name := range names {
			l := mustTry(t, other, name)
			if _, err := one.TryAcquire(t.Context(), top, pglock.WithSubtree()); !errors.Is(err, pglock.ErrHeld) {
				t.Errorf("the subtree of %q beside %q: %v, want ErrHeld", top, name, err)
			}
			mustRelease(t, l)
		}
		mustRelease(t, mustTry(t, one, top, pglock.WithSubtree()))
	}
	mustRelease(t, others...)
}

// What cannot be a subtree is refused with the field, the value and the rule, and nothing is written.
func TestI11_WhatCannotBeASubtreeIsRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	c, look := newClient(t, db.Pool(t)), newPeer(t, db.URL())
	for name, opts := range map[string][]pglock.AcquireOption{
		"/": nil, "/a": nil, "a/": nil, "a//b": nil, "//": nil, "": nil, "a": {pglock.WithLimit(3)},
	} {
		_, err := c.TryAcquire(t.Context(), name, append(opts, pglock.WithSubtree())...)
		if wrong, is := errors.AsType[*pglock.ArgumentError](err); !is || wrong.Field == "" || wrong.Rule == "" {
			t.Errorf("%q: %v, want an ArgumentError", name, err)
		}
		if _, err := c.AcquireAll(t.Context(), []string{"fine", name},
			append(opts, pglock.WithSubtree())...); !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%q of several: %v, want ErrInvalid", name, err)
		}
		mode, limit := "exclusive", any(nil)
		if len(opts) > 0 {
			mode, limit = "limit", 3
		}
		_, err = look.Exec(t.Context(), `SELECT pglock.acquire_subtree($1, gen_random_uuid(), gen_random_uuid(), 'x', '9 s',
			p_mode => $2, p_capacity => $3)`, name, mode, limit)
		if state(err) != "22023" {
			t.Errorf("%q in SQL: %v, want 22023", name, err)
		}
	}
	wantCount(t, look, 0, "%d rows were written",
		`SELECT (SELECT count(*) FROM pglock.locks) + (SELECT count(*) FROM pglock.waiters)
		+ (SELECT count(*) FROM pglock.subtrees)`)
}

// Whoever holds a subtree takes locks below it at once, with greater tokens, also while others wait; others see one
// holder until the last of these leases has ended.
func TestTheOwnerOfASubtreeTakesLocksBelow(t *testing.T) {
	db := pgtest.Parallel(t)
	c, other := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	look := newPeer(t, db.URL())
	for name, opts := range map[string][]pglock.AcquireOption{
		"x": {pglock.WithSubtree()}, "s": {pglock.WithSubtree(), pglock.WithShared()}} {
		outer := mustTry(t, c, name, opts...)
		got := make(chan fetched, 3)
		acquireInBackground(t.Context(), other, 0, name, got, pglock.WithSubtree())
		awaitQueue(t, look, name, 1)
		var inner []*pglock.Lease
		for _, below := range []string{"/a", "/b/c", "/b"} {
			l, err := c.TryAcquire(outer.Context(), name+below, opts...)
			if err != nil || l.Token() <= outer.Token() {
				t.Fatalf("%s%s: %v, %v", name, below, l, err)
			}
			inner = append(inner, l)
		}
		plain, err := c.TryAcquire(outer.Context(), name+"/b/d", opts[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		mustRelease(t, outer)
		for _, l := range append(inner, plain) {
			select {
			case f := <-got:
				t.Fatalf("granted while %v is held: %v, %v", l, f.lease, f.err)
			default:
			}
			mustRelease(t, l)
		}
		f := await(t, got)
		if f.err != nil || f.lease.Token() <= plain.Token() {
			t.Fatal(f.lease, f.err)
		}
		mustRelease(t, f.lease)
	}
}

// AcquireAll of such lists, from two clients in opposite orders, never ends in a circle; nor with names whose byte
// order would be another than that of the tree.
func TestAcquireAllOfSubtreesEndsInNoCircle(t *testing.T) {
	db := pgtest.Parallel(t)
	clients := []*pglock.Client{newClient(t, db.Pool(t)), newClient(t, db.Pool(t))}
	lists := [][]string{{"a/1", "a-b"}, {"a", "a-b"}, {"a-b", "a/1/2", "b"}, {"b", "a"}}
	errs := make(chan error, 8)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience) // a circle has no end
	defer cancel()
	for n := range cap(errs) {
		go func() {
			for range rounds(12) {
				var opts []pglock.AcquireOption
				if n%2 == 1 {
					opts = append(opts, pglock.WithSubtree())
				}
				all, err := clients[n%2].AcquireAll(ctx, lists[n%4], opts...)
				if err == nil {
					err = all.Release(ctx)
				}
				if err != nil {
					errs <- fmt.Errorf("%v: %w", lists[n%4], err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range cap(errs) {
		must.Note(t, <-errs)
	}
}

// A call that names two locks below a name of another has the first when the other begins to wait, which then lets
// nobody else below.
func TestTwoNamesBelowASubtreeThatIsWaitedForEndInACircle(t *testing.T) {
	db := pgtest.Parallel(t)
	c, other := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	first := mustTry(t, c, "a/b", pglock.WithSubtree())
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), other, 0, "a", got, pglock.WithSubtree())
	awaitQueue(t, newPeer(t, db.URL()), "a", 1)
	_, err := c.AcquireAll(first.Context(), []string{"a/c"}, pglock.WithSubtree(), pglock.WithMaxWait(patience))
	if !errors.Is(err, pglock.ErrDeadlock) {
		t.Errorf("%v, want ErrDeadlock", err)
	}
	mustRelease(t, first)
	must.Note(t, await(t, got).err)
}
