package look

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// LockView is a lock in JSON: the library's LockInfo, with durations in milliseconds.
type LockView struct {
	pglock.LockInfo
	TTL       int64 `json:"ttl_ms"`
	Remaining int64 `json:"remaining_ms"`
	HeldFor   int64 `json:"held_for_ms"`
	Longest   int64 `json:"longest_wait_ms"`

	Life lockadmin.Life `json:"life,omitempty"` // of the holder; "" if the lock is free, or if nobody has asked
}

// ListedLock is a lock in the list.
type ListedLock struct {
	LockView
	Verdict lockadmin.Severity `json:"verdict,omitempty"` // of the lock, as why judges it; "" if nobody has looked
	Why     string             `json:"why,omitempty"`
}

func ViewOf(i pglock.LockInfo) LockView {
	return LockView{LockInfo: i, TTL: i.TTL.Milliseconds(), Remaining: i.Remaining.Milliseconds(),
		HeldFor: lists.HeldFor(i).Milliseconds(),
		Longest: i.LongestWait.Milliseconds()}
}

// withLives shows leases, and says whether their holders live.
func withLives(ctx context.Context, admin *lockadmin.Admin, infos []pglock.LockInfo) ([]LockView, error) {
	lives, err := admin.Lives(ctx, infos)
	views := make([]LockView, len(lives))
	for n, l := range lives {
		views[n] = ViewOf(infos[n])
		views[n].Life = l.Life
	}
	return views, err
}

// Judged says of leases whether their holders live, and how their locks are.
func Judged(ctx context.Context, admin *lockadmin.Admin, infos []pglock.LockInfo) ([]ListedLock, error) {
	views, err := withLives(ctx, admin, infos)
	if err != nil {
		return nil, err
	}
	verdicts, err := admin.Summaries(ctx, infos)
	all := make([]ListedLock, len(verdicts))
	for n, s := range verdicts {
		all[n] = ListedLock{views[n], s.Severity, s.Kind}
	}
	return all, err
}

type ListView struct {
	Locks []ListedLock `json:"locks"`
	More  bool         `json:"more"` // --limit left some out
}

func NewList(o *cli.Options) *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "Show who holds which lock",
		Long: `Show the locks that are held: who holds each, with which fencing token, since when, and how much of the lease is left.
You can paste a name from the table after pglock-admin show.

  VERDICT  what why says: OK, BUSY (somebody waits; the holder lives, or its lease ends in a moment), NOTE, WARNING or STUCK; "?": not looked at, as more than fifty may not be well, or half of --timeout was over
  MODE     "shared #2" and "limit 3 #2" are slots: each holder has a line; "subtree" covers all names below, too
  LEASE    how much is left, or that the holder is silent or dead: pglock-admin sessions --help
  WAITING  how many wait for the lock, also those that the queue passes over, and for how long the first of them has

A lock that has been free for three seconds though somebody waits is in the list too, unless something above or below it
is in the way, or you choose leases or another order. With -o tree the names stand under each other by their parts
between slashes. PREFIX is the same as --prefix.

--order age shows the lease first that is held longest, --order waiting the lock that somebody has waited for longest,
--order expiry the lease that ends next. docs/command-line.md has more about filters and pages.`,
		Example: `  pglock-admin list
  pglock-admin list --prefix jobs/ --all -o json
  pglock-admin list tenants/7/ --all -o tree       what there is of tenant 7, as a tree
  pglock-admin list --order age --limit 10         the ten leases that are held longest
  pglock-admin list --queued --older 5m            somebody waits, and the last grant is five minutes old`,
		Args:        cli.Takes("one PREFIX", true),
		Annotations: cli.DrawsTree,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := flags.read(cmd, args)
			if err != nil {
				return err
			}
			if prefix != "" && flags.prefix != "" {
				return cli.UsageErrorf("one of the two", "PREFIX and --prefix mean the same")
			}
			flags.prefix += prefix
			limit, page := flags.ends()
			q := lockadmin.LocksQuery{Prefix: flags.prefix, Match: flags.match, Holder: flags.holder,
				Session: flags.session, Mode: pglock.Mode(flags.mode), Older: flags.older, Free: flags.all,
				Queued: flags.queued,
				Waited: flags.holder == "" && flags.session == "" && flags.mode == "" && flags.older == 0,
				Order:  lockadmin.Order(flags.order), After: flags.after, Limit: limit, PageSize: page}
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				first := lists.First[pglock.LockInfo]
				if flags.order == string(lockadmin.OrderName) {
					first = lists.FirstLocks
				}
				infos, more, err := first(flags.limit, admin.Locks(ctx, q))
				if err != nil {
					return err
				}
				locks, err := Judged(ctx, admin, infos)
				if err != nil {
					return err
				}
				view := ListView{Locks: locks, More: more}
				draw := drawList
				if o.Output == cli.OutputTree {
					draw = drawTree
				}
				return o.Show(cmd, view, func(w *cli.Page) { draw(w, view, flags) })
			})
		},
	}
	flags.add(o, cmd, map[string]string{
		"prefix":  "show only locks whose names begin with this `text`",
		"match":   "show only leases with this `text` in the name or in the label of the holder",
		"holder":  "show only leases of the holder with this `label`",
		"session": "show only leases of the session with this `ID`",
		"mode":    "show only leases of this mode, a `word`: ",
		"all":     "show free locks too",
		"queued":  "show only locks for which somebody waits",
		"older":   "show only leases that are held for longer than this `duration`",
		"after":   "begin after the lock with this `name`",
	}, lockadmin.OrderName, lockadmin.OrderAge, lockadmin.OrderRecent, lockadmin.OrderWaiting, lockadmin.OrderExpiry)
	return cmd
}

func drawList(w *cli.Page, view ListView, flags listFlags) {
	t := cli.Table{
		Titles: []string{"LOCK", "VERDICT", "MODE", "HOLDER", "TOKEN", "HELD-FOR", "EXPIRES-IN", "LEASE", "WAITING"},
		Right:  []string{"TOKEN", "HELD-FOR", "EXPIRES-IN", "WAITING"},
		Spare:  []string{"HELD-FOR", "LEASE"}, // show has them
	}
	exclusive, last := true, ""
	for _, l := range view.Locks {
		exclusive, last = exclusive && l.Mode == pglock.ModeExclusive && !l.Subtree, l.Name
		t.Rows = append(t.Rows, []string{shown.Name(l.Name), cli.Mark(l.Verdict), SlotText(l.LockInfo),
			shown.Text(l.Holder), strconv.FormatInt(int64(l.Token), 10),
			shown.Either(l.Held, shown.Age(lists.HeldFor(l.LockInfo)), "-"),
			shown.Either(l.Held, shown.Age(l.LockInfo.Remaining), "FREE"),
			shown.Either(l.Held, LeaseCell(l.LockInfo, l.Life, 5), ""),
			shown.Either(l.Waiting > 0, fmt.Sprintf("%d (%s)", l.Waiting, shown.Age(l.LongestWait)), "-")})
	}
	if exclusive {
		t.Without("MODE")
	}
	nothing := shown.Either(flags.all, "no locks", "no lock is held (--all shows free ones too)")
	flags.draw(w, t, "lock", nothing, view.More, last)
}

// LeaseCell shows how much of a lease is left; or instead that its holder is silent or dead.
func LeaseCell(i pglock.LockInfo, life lockadmin.Life, cells int) string {
	if life == lockadmin.LifeSilent || life == lockadmin.LifeDead {
		return string(life)
	}
	return cli.LeaseCells(i.Remaining, i.TTL, cells)
}

// SlotText is a lease's mode, with its slot if it has one: "exclusive subtree", "shared #1", "limit 3 #2".
func SlotText(i pglock.LockInfo) string {
	return ModeText(i.Mode, i.Limit, i.Subtree) + shown.Either(i.Slot > 0, fmt.Sprintf(" #%d", i.Slot), "")
}
