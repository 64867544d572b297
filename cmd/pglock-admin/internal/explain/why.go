package explain

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

func NewWhy(o *cli.Options) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "why [NAME]",
		Short: "Say what is wrong, and what to do next",
		Long: `Without a name, show the locks of the database that are not well, the worst first: who is the cause and since when, and
the first thing to do. STUCK: somebody waits in vain, or soon will. WARNING: something is wrong, and nobody waits in vain
yet. BUSY: somebody waits; the holder lives, or its lease ends in a moment. Of more than 1,000 locks it may miss a dead
holder that nobody waits for.

With a name, explain one lock in plain words: who holds it and whether that program is alive, who waits, what blocks it in
PostgreSQL, what happened before, and what to do next, as commands to paste. If nobody has used the lock, it names similar
ones, and other databases of the server in which pglock is in use.

It changes nothing, waits for no row, and exits with 0 whatever it finds. docs/operations.md has all that it recognizes.

You need the role pglock_user. To see takeovers and breaks you also need pglock_admin, and to see what other users'
connections do, pg_read_all_stats.`,
		Example: `  pglock-admin why
  pglock-admin why nightly-report`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return o.SlowLook(overview(o, cmd, limit))
			}
			name, err := cli.NameOf(cmd, args, 0)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("limit") {
				return cli.UsageErrorf("pglock-admin why"+o.Same(), "--limit is for why without a name")
			}
			return o.SlowLook(o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				e, err := admin.Explain(ctx, name)
				if err != nil {
					return err
				}
				return o.Show(cmd, Pasteable(o, e), func(w *cli.Page) { DrawWhy(w, o, e) })
			}))
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "without a name, show at most this `number` of locks, from 1 to 1000")
	return cmd
}

// command writes what a step runs, so that somebody can paste it into a shell.
func command(o *cli.Options, s lockadmin.Step) string {
	switch s.Run {
	case lockadmin.RunAdmin:
		return o.There("pglock-admin "+s.Command, s.Schema, s.Database)
	case lockadmin.RunSQL:
		return o.Psql() + " -c " + shown.Query(s.Command)
	}
	return s.Command
}

// WhyView is an explanation in JSON, with the commands as they are pasted.
type WhyView struct {
	lockadmin.Explanation
	Standby  *struct{}    `json:"standby,omitempty"` // every answer has it
	Verdicts []whyVerdict `json:"verdicts"`
}

type whyVerdict struct {
	lockadmin.Verdict
	Steps []whyStep `json:"steps"`
}

type whyStep struct {
	lockadmin.Step
	Paste string `json:"paste,omitempty"` // the whole command, for a shell
	First string `json:"first,omitempty"` // what to do before
}

func pasteableStep(o *cli.Options, s lockadmin.Step) whyStep {
	step := whyStep{Step: s, Paste: command(o, s)}
	if o.LeavesOut(step.Paste) {
		step.First = cli.PasswordFirst
	}
	return step
}

func Pasteable(o *cli.Options, e lockadmin.Explanation) WhyView {
	v := WhyView{Explanation: e, Verdicts: []whyVerdict{}}
	for _, verdict := range e.Verdicts {
		w := whyVerdict{Verdict: verdict, Steps: []whyStep{}}
		for _, s := range verdict.Steps {
			w.Steps = append(w.Steps, pasteableStep(o, s))
		}
		v.Verdicts = append(v.Verdicts, w)
	}
	return v
}
