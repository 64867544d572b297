package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// lockView is a lock in JSON: the library's LockInfo, with durations in milliseconds.
type lockView struct {
	pglock.LockInfo
	TTL       int64 `json:"ttl_ms"`
	Remaining int64 `json:"remaining_ms"`
	HeldFor   int64 `json:"held_for_ms"`
}

func viewOf(i pglock.LockInfo) lockView {
	return lockView{LockInfo: i, TTL: i.TTL.Milliseconds(), Remaining: i.Remaining.Milliseconds(), HeldFor: heldFor(i).Milliseconds()}
}

// heldFor uses the server's clock alone: the server looked at ExpiresAt minus Remaining.
func heldFor(i pglock.LockInfo) time.Duration {
	if !i.Held {
		return 0
	}
	return max(0, i.ExpiresAt.Add(-i.Remaining).Sub(i.AcquiredAt))
}

type listView struct {
	Locks []lockView `json:"locks"`
	More  bool       `json:"more"` // --limit left some out
}

func newList(o *options) *cobra.Command {
	var prefix string
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show who holds which lock",
		Long: `Show the locks that are held: who holds each, with which fencing token, since when, and how much of the lease is left.
A live holder renews its lease. A lease that has almost run out belongs to a holder that is stopped or cut off.

A lock that is shared or has a limit has a line for each holder. Its mode is "shared #2" or "limit 3 #2" for the
holder of slot 2. WAITING is how many wait for the lock; pglock-admin waiters shows them.

You can paste a name from the table after pglock-admin show.`,
		Example: `  pglock-admin list
  pglock-admin list --prefix jobs/ --all -o json`,
		Args:        noArguments,
		Annotations: usesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usageErrorf("--limit 100, or 0 for all", "--limit is %d: it must not be negative", limit)
			}
			return o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				view, err := listAll(ctx, admin, prefix, all, limit)
				if err != nil {
					return err
				}
				return o.show(cmd, view, func(w *page) { drawList(w, view, all) })
			})
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "show only locks whose names begin with this `text`")
	cmd.Flags().BoolVar(&all, "all", false, "show free locks too")
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most this `number`; 0 shows all")
	return cmd
}

// listAll reads one row more than the limit, to know whether there are more.
func listAll(ctx context.Context, admin *lockadmin.Admin, prefix string, free bool, limit int) (listView, error) {
	var opts []lockadmin.ListOption
	if prefix != "" {
		opts = append(opts, lockadmin.WithPrefix(prefix))
	}
	if free {
		opts = append(opts, lockadmin.WithFree())
	}
	if limit > 0 {
		opts = append(opts, lockadmin.WithPageSize(min(limit+1, lockadmin.DefaultPageSize)))
	}
	infos, more, err := first(limit, admin.Locks(ctx, opts...))
	view := listView{Locks: []lockView{}, More: more}
	for _, i := range infos {
		view.Locks = append(view.Locks, viewOf(i))
	}
	return view, err
}

// first reads a list up to a limit, and reports whether there is more. 0 means no limit.
func first[T any](limit int, list iter.Seq2[T, error]) (some []T, more bool, err error) {
	for one, err := range list {
		switch {
		case err != nil:
			return nil, false, err
		case limit > 0 && len(some) == limit:
			return some, true, nil
		}
		some = append(some, one)
	}
	return some, false, nil
}

func drawList(w *page, view listView, all bool) {
	if len(view.Locks) == 0 {
		if all {
			fmt.Fprintln(w, "no locks")
		} else {
			fmt.Fprintln(w, "no lock is held (--all shows free ones too)")
		}
		return
	}
	exclusive := true
	for _, l := range view.Locks {
		exclusive = exclusive && l.Mode == pglock.ModeExclusive
	}
	titles := []string{"LOCK", "MODE", "HOLDER", "TOKEN", "HELD-FOR", "EXPIRES-IN", "LEASE", "WAITING"}
	var rows [][]string
	for _, l := range view.Locks {
		held, expires, bar, waiting := "-", "FREE", "", "-"
		if l.Held {
			held, expires, bar = age(heldFor(l.LockInfo)), age(l.LockInfo.Remaining), leaseBar(l.LockInfo.Remaining, l.LockInfo.TTL)
		}
		if l.Waiting > 0 {
			waiting = strconv.Itoa(l.Waiting)
		}
		rows = append(rows, []string{shellName(l.Name), slotText(l.LockInfo), printable(l.Holder), strconv.FormatInt(int64(l.Token), 10), held, expires, bar, waiting})
	}
	right := []string{"TOKEN", "HELD-FOR", "EXPIRES-IN", "WAITING"}
	if exclusive {
		titles, rows = without("MODE", titles, rows)
	}
	if !w.fits(tableOf(titles, rows)) {
		titles, rows = without("HELD-FOR", titles, rows) // show has it
	}
	drawTable(w, titles, rows, placesOf(right, titles)...)
	if view.More {
		fmt.Fprintf(w, "the first %d; there are more: raise --limit, or narrow with --prefix\n", len(view.Locks))
	}
}

// without leaves a column out.
func without(title string, titles []string, rows [][]string) ([]string, [][]string) {
	n := slices.Index(titles, title)
	for i, row := range rows {
		rows[i] = slices.Delete(row, n, n+1)
	}
	return slices.Delete(titles, n, n+1), rows
}

func placesOf(some, titles []string) (places []int) {
	for _, title := range some {
		if n := slices.Index(titles, title); n >= 0 {
			places = append(places, n)
		}
	}
	return places
}

// slotText is a lease's mode, with its slot if it has one: "exclusive", "shared #1", "limit 3 #2".
func slotText(i pglock.LockInfo) string {
	mode := modeText(i.Mode, i.Limit)
	if i.Slot > 0 {
		mode += fmt.Sprintf(" #%d", i.Slot)
	}
	return mode
}
