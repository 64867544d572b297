package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/engine"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

type DoctorView struct {
	Findings  []lockadmin.Finding `json:"findings"`
	Attention []string            `json:"attention"`         // the items of a WARNING
	Verdict   string              `json:"verdict,omitempty"` // with --engine: whether locks are safe here
}

func NewDoctor(o *cli.Options) *cobra.Command {
	strict, asEngine := false, false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what the server can do for the locks",
		Long: `Check what the server can do for the locks, and explain each finding: OK, WARNING when it needs attention, or NOTE when it
depends on what you want. doctor changes nothing, and also works when programs refuse to start. docs/operations.md has
all findings.

The exit code is 0 whatever doctor finds; with --strict it is 7 when anything needs attention. A schema that is missing
or of another version is an error with exit code 5. You need the role pglock_user.

With --engine, doctor tries on the server what locks need of PostgreSQL, in a second: for an engine that speaks
PostgreSQL's protocol, before you install anything. It makes a schema pglock_trial_… and drops it. You need CREATE on
the database, and three connections.`,
		Example: `  pglock-admin doctor
  pglock-admin doctor --strict
  pglock-admin doctor --engine --strict
  pglock-admin doctor -o json | jq '.findings[] | select(.severity == "warning")'`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.WithPool(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				view, err := diagnosed(ctx, o, pool, asEngine)
				if view.Findings == nil {
					return err
				}
				err = errors.Join(o.Show(cmd, view, func(w *cli.Page) { drawDoctor(w, view) }), err)
				if err != nil {
					return err
				}
				if strict && len(view.Attention) > 0 {
					return cli.Errorf(cli.ExitAttention, "follow the explanation of each, or leave --strict out",
						"%s marked WARNING (--strict)", cli.Count(int64(len(view.Attention)), "finding"))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 7 when anything needs attention")
	cmd.Flags().BoolVar(&asEngine, "engine", false, "try what locks need of PostgreSQL; needs no schema")
	return cmd
}

func diagnosed(ctx context.Context, o *cli.Options, pool *pgxpool.Pool, asEngine bool) (v DoctorView, err error) {
	if !asEngine {
		v.Findings, err = lockadmin.Diagnose(ctx, pool, lockadmin.WithSchema(o.Schema))
		v.Attention = attention(v.Findings)
		return v, err
	}
	v.Findings, err = engine.Try(ctx, o.Config.ConnConfig)
	v.Attention = attention(v.Findings)
	v.Verdict = shown.Either(len(v.Attention) > 0, "Locks are not safe on this server.",
		"As far as a trial can tell, locks are safe on this server.")
	if cli.StateOf(err) == "42501" {
		err = &cli.Advised{Err: err, Code: cli.ExitPermission, Hint: "let an administrator run: GRANT CREATE ON " +
			"DATABASE " + pgx.Identifier{o.Config.ConnConfig.Database}.Sanitize() + " TO " +
			pgx.Identifier{o.Config.ConnConfig.User}.Sanitize() + "; or try in a database of your own"}
	}
	return v, err
}

func (v DoctorView) summary() string {
	if v.Verdict != "" {
		return v.Verdict + " " + strings.ToUpper(v.counted()[:1]) + v.counted()[1:] + "."
	}
	return v.counted()
}

func (v DoctorView) counted() string {
	return shown.Either(len(v.Attention) == 0, "nothing needs attention",
		fmt.Sprintf("WARNING: %d of %d: %s", len(v.Attention), len(v.Findings), strings.Join(v.Attention, ", ")))
}

func attention(findings []lockadmin.Finding) []string {
	items := []string{}
	for _, f := range findings {
		if f.Severity == lockadmin.SeverityWarning {
			items = append(items, f.Item)
		}
	}
	return items
}

// The columns of a finding: its mark, its item and its value. The meaning goes below them.
const (
	markWidth = len("WARNING") + 2
	itemMost  = 40
)

func drawDoctor(w *cli.Page, v DoctorView) {
	most, width := cli.TextWidth(w), 0
	for _, f := range v.Findings {
		if n := utf8.RuneCountInString(shown.Text(f.Item)); n <= itemMost {
			width = max(width, n)
		}
	}
	for _, f := range v.Findings {
		mark := cli.Mark(f.Severity)
		item, value := shown.Text(f.Item), shown.Text(f.Value)
		if start := markWidth + width + 2; utf8.RuneCountInString(item) <= width && start+
			utf8.RuneCountInString(value) <= most {
			fmt.Fprintf(w, "%-*s%-*s  %s\n", markWidth, mark, width, item, value)
		} else {
			fmt.Fprintf(w, "%-*s%s\n%s\n", markWidth, mark, indented(item, most), strings.Repeat(" ", markWidth)+
				indented(value, most))
		}
		fmt.Fprintf(w, "%*s%s\n", markWidth, "", indented(shown.Text(f.Meaning), most))
	}
	fmt.Fprintf(w, "\n%s\n", cli.Wrapped(shown.Text(v.summary()), most))
}

// indented wraps a text for the column of the items.
func indented(s string, most int) string {
	return cli.Indented(cli.Wrapped(s, most-markWidth), markWidth)
}
