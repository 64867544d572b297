package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// waiterView is a waiter in JSON: the library's Waiter, with durations in milliseconds.
type waiterView struct {
	lockadmin.Waiter
	TTL     int64 `json:"ttl_ms"`
	Waiting int64 `json:"waiting_ms"`
}

type waitersView struct {
	Waiters []waiterView `json:"waiters"`
	More    bool         `json:"more"` // --limit left some out
}

const passedOver = "dead session: the queue will pass over it"

func newWaiters(o *options) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "waiters [NAME]",
		Short: "Show who waits for which lock, in order",
		Long: `Show who waits for one lock, or for all. A line has the place in the queue, the ticket, the mode (exclusive, shared or
limit), the waiter, how long it has waited, and what it waits for: the holder, or the waiter before it. A waiter whose
session gives no sign of life is marked; the queue will pass over it.`,
		Example: `  pglock-admin waiters
  pglock-admin waiters nightly-report -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] == "" {
				return usageErrorf("pglock-admin "+cmd.Use+"; a name with spaces needs quotes",
					"waiters takes the name of one lock or none, not %q", args)
			}
			return nil
		},
		Annotations: usesDatabase,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if limit < 1 || limit > 9999 {
				return usageErrorf("--limit 100", "--limit is %d: it must be from 1 to 9999", limit)
			}
			name := ""
			if len(args) == 1 {
				if name, err = nameOf(cmd, args, 0); err != nil {
					return err
				}
			}
			return o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				waiters, more, err := first(limit, admin.Waiters(ctx, name, lockadmin.WithPageSize(min(limit+1, lockadmin.MaxPageSize))))
				if err == nil && len(waiters) == 0 && name != "" {
					_, err = admin.Get(ctx, name) // tells an empty queue from a lock that does not exist
				}
				if err != nil {
					return o.noSuchLock(name, err)
				}
				view := waitersView{Waiters: waiterViews(waiters), More: more}
				return o.show(cmd, view, func(w *page) { drawWaiters(w, view, name) })
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 1000, "show at most this `number`")
	return cmd
}

func waiterViews(waiters []lockadmin.Waiter) []waiterView {
	views := []waiterView{}
	for _, w := range waiters {
		views = append(views, waiterView{Waiter: w, TTL: w.TTL.Milliseconds(), Waiting: w.Waiting.Milliseconds()})
	}
	return views
}

func drawWaiters(w *page, view waitersView, name string) {
	if len(view.Waiters) == 0 {
		if name == "" {
			fmt.Fprintln(w, "nobody waits for a lock")
		} else {
			fmt.Fprintf(w, "nobody waits for lock %s\n", shellName(name))
		}
		return
	}
	titles := []string{"LOCK", "PLACE", "TICKET", "MODE", "HOLDER", "WAITING", "WAITS-FOR"}
	right := []int{1, 2, 5}
	first := 0
	if name != "" {
		titles, right, first = titles[1:], []int{0, 1, 4}, 1
	}
	var rows [][]string
	for _, q := range view.Waiters {
		row := []string{shellName(q.Lock), strconv.Itoa(q.Place), strconv.FormatInt(q.Ticket, 10), modeText(q.Mode, q.Limit),
			printable(q.Holder), age(q.Waiter.Waiting), waitsFor(q.Waiter)}
		rows = append(rows, row[first:])
	}
	drawTable(w, titles, rows, right...)
	if view.More {
		fmt.Fprintf(w, "the first %d; there are more: raise --limit", len(view.Waiters))
		if name == "" {
			fmt.Fprint(w, ", or name a lock")
		}
		fmt.Fprintln(w)
	}
}

// waitsFor tells what a waiter waits for.
func waitsFor(q lockadmin.Waiter) string {
	switch {
	case !q.Alive:
		return passedOver
	case q.Before != 0:
		return fmt.Sprintf("ticket %d %s", q.Before, printable(q.Behind))
	case q.Behind != "":
		return "holder " + printable(q.Behind)
	}
	return "nobody: its turn has come"
}

// modeText writes a mode in words: "exclusive", "shared", "limit 3".
func modeText(m pglock.Mode, limit int) string {
	if m == pglock.ModeLimit {
		return fmt.Sprintf("limit %d", limit)
	}
	return string(m)
}
