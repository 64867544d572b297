package live

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
)

const liveHelp = `The screen looks again every --interval, with one statement at a time. If a look takes long, the screen pauses four
times as long before the next one. If the server does not answer, or a standby does, the screen says so, calls what it
shows old, and tries again within a minute.

It needs a terminal, and leaves it as it was: with exit code 0 after q, with 130 after Ctrl-C or a signal. Ctrl-Z
suspends it.`

func NewTop(o *cli.Options) *cobra.Command {
	interval := liveInterval
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the locks live on a full screen",
		Long: `Show the locks live: those that somebody has waited for longest first (w), the longest held (a), or those granted most often (r).
Type / and a text to see only locks whose name or holder contains it. Enter opens a lock: its holders, its queue, its
history, and the server's processes that work for it. There b breaks a lease, after it has asked for the reason. It
breaks the lease with the token that it shows, and never one that was granted meanwhile. That needs the role
pglock_admin.

` + liveHelp,
		Example:     `  pglock-admin top`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return live(o, cmd, liveWish{order: byWait}, interval, "pglock-admin list"+o.Same())
		},
	}
	intervalVar(cmd, &interval)
	return cmd
}

func NewWatch(o *cli.Options) *cobra.Command {
	interval := liveWatchInterval
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Show one lock live on a full screen",
		Long: `Show one lock live: its holders, its queue, its history, and the server's processes that work for it. The screen moves
when the lock changes. b breaks a lease, after it has asked for the reason. It breaks the lease with the token that it
shows, and never one that was granted meanwhile. That needs the role pglock_admin. With several holders, Tab chooses
one.

` + liveHelp,
		Example:     `  pglock-admin watch nightly-report`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := cli.NameOf(cmd, args, 0)
			if err != nil {
				return err
			}
			return live(o, cmd, liveWish{name: name, order: byWait}, interval,
				"pglock-admin show "+shown.Name(name)+o.Same())
		},
	}
	intervalVar(cmd, &interval)
	return cmd
}

func intervalVar(cmd *cobra.Command, interval *time.Duration) {
	cli.DurationVar(cmd.Flags(), interval, "interval", "`duration` from one look to the next, from 100ms to 1m")
}
