package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/pglock"
)

// lockView is a lock in JSON: what the library tells, and its durations in milliseconds.
type lockView struct {
	pglock.Info
	TTL       int64 `json:"ttl_ms"`
	Remaining int64 `json:"remaining_ms"`
	HeldFor   int64 `json:"held_for_ms"`
}

func viewOf(i pglock.Info) lockView {
	return lockView{Info: i, TTL: i.TTL.Milliseconds(), Remaining: i.Remaining.Milliseconds(), HeldFor: heldFor(i).Milliseconds()}
}

// heldFor is reckoned by the server's clock alone: it looked when Remaining was left until ExpiresAt.
func heldFor(i pglock.Info) time.Duration {
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
		Long: `Show the locks that are held: by whom, with which fencing token, for how long by now, and how much of the lease is
left. Holders that live renew their leases: a lease that has run far down belongs to one that is stopped or cut off.`,
		Example: `  pglock-admin list
  pglock-admin list --prefix jobs/ --all -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usageErrorf("--limit 100, or 0 for all", "--limit is %d: it must not be negative", limit)
			}
			return o.withClient(cmd.Context(), func(ctx context.Context, client *pglock.Client) error {
				view, err := listAll(ctx, client, prefix, all, limit)
				if err != nil {
					return err
				}
				return o.show(cmd, view, func(w io.Writer) { drawList(w, view, all) })
			})
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only locks whose `name` begins so")
	cmd.Flags().BoolVar(&all, "all", false, "free locks too")
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so `many`; 0 is all")
	return cmd
}

// listAll reads page after page, and one lock more than the limit to know whether there is one.
func listAll(ctx context.Context, client *pglock.Client, prefix string, free bool, limit int) (listView, error) {
	const page = 1000
	view := listView{Locks: []lockView{}}
	after := ""
	for {
		ask := page
		if limit > 0 {
			ask = min(page, limit+1-len(view.Locks))
		}
		infos, err := client.List(ctx, pglock.ListOptions{Prefix: prefix, Free: free, After: after, Limit: ask})
		if err != nil {
			return listView{}, err
		}
		for _, i := range infos {
			if limit > 0 && len(view.Locks) == limit {
				view.More = true
				return view, nil
			}
			view.Locks = append(view.Locks, viewOf(i))
			after = i.Name
		}
		if len(infos) < ask {
			return view, nil
		}
	}
}

func drawList(w io.Writer, view listView, all bool) {
	if len(view.Locks) == 0 {
		if all {
			fmt.Fprintln(w, "no locks")
		} else {
			fmt.Fprintln(w, "no lock is held (--all shows free ones too)")
		}
		return
	}
	var rows [][]string
	for _, l := range view.Locks {
		held, expires, bar := "-", "FREE", ""
		if l.Held {
			held, expires, bar = age(heldFor(l.Info)), age(l.Info.Remaining), leaseBar(l.Info.Remaining, l.Info.TTL)
		}
		rows = append(rows, []string{printable(l.Name), printable(l.Holder), strconv.FormatInt(int64(l.Token), 10), held, expires, bar})
	}
	drawTable(w, []string{"LOCK", "HOLDER", "TOKEN", "HELD-FOR", "EXPIRES-IN", "LEASE"}, rows, 2, 3, 4)
	if view.More {
		fmt.Fprintf(w, "the first %d; there are more: raise --limit, or narrow with --prefix\n", len(view.Locks))
	}
}
