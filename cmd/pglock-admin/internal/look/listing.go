package look

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	Listed     = 1000
	mostListed = lockadmin.MaxPageSize - 1 // one more tells whether there are more
)

// listFlags are the filters, the order and the limit of a command that lists something.
type listFlags struct {
	prefix, match, holder, session, mode, order, after string
	all, queued                                        bool
	older                                              time.Duration
	limit                                              int
}

// add defines some of the flags, each with its usage. orders are those of the list; the first one is its default.
func (f *listFlags) add(o *cli.Options, cmd *cobra.Command, usages map[string]string, orders ...lockadmin.Order) {
	flags := cmd.Flags()
	for name, to := range f.texts() {
		if usage := usages[name]; usage != "" {
			flags.StringVar(to, name, "", usage)
		}
	}
	for name, to := range map[string]*bool{"all": &f.all, "queued": &f.queued} {
		if usage := usages[name]; usage != "" {
			flags.BoolVar(to, name, false, usage)
		}
	}
	if usage := usages["mode"]; usage != "" {
		cli.WordVar(cmd, &f.mode, "mode", usage, string(pglock.ModeExclusive), string(pglock.ModeShared),
			string(pglock.ModeLimit))
	}
	if usage := usages["older"]; usage != "" {
		cli.DurationVar(flags, &f.older, "older", usage)
	}
	words := shown.Words(orders)
	f.order = words[0]
	cli.WordVar(cmd, &f.order, "order", "`word` that sorts: ", words...)
	flags.IntVar(&f.limit, "limit", Listed, fmt.Sprintf("show at most this `number`, from 1 to %d", mostListed))
	o.CompleteFlags(cmd)
}

func (f *listFlags) texts() map[string]*string {
	return map[string]*string{"prefix": &f.prefix, "match": &f.match, "holder": &f.holder, "session": &f.session,
		"after": &f.after}
}

// check refuses flags that do not fit, before anything is sent.
func (f *listFlags) check(cmd *cobra.Command) error {
	switch {
	case f.limit < 1 || f.limit > mostListed:
		return cli.UsageErrorf("--limit 100", "--limit is %d: it must be from 1 to %d", f.limit, mostListed)
	case cmd.Flags().Changed("older") && f.older < time.Microsecond:
		return cli.UsageErrorf("--older 10m", "--older is %s: it must be greater than 0", shown.Duration(f.older))
	case f.after != "" && f.order != string(lockadmin.OrderName):
		return cli.UsageErrorf("--order name, or no --after", "--after goes with --order name only, not with %s",
			f.order)
	}
	for name, value := range f.texts() {
		if *value == "" && cmd.Flags().Changed(name) {
			return cli.UsageErrorf("without --"+name, "--%s is empty: it must have at least 1 byte", name)
		}
	}
	return nil
}

// draw draws a list, or says that it is empty: nothing, unless the flags may be why. last is the entry after which it
// goes on.
func (f *listFlags) draw(w *cli.Page, t cli.Table, what, nothing string, more bool, last string) {
	switch {
	case len(t.Rows) > 0:
		t.Draw(w)
	case f.filtered():
		fmt.Fprintf(w, "no %s fits these flags\n", what)
	default:
		fmt.Fprintln(w, nothing)
	}
	if more {
		f.more(w, len(t.Rows), last)
	}
}

// more says that a list goes on, after its last entry.
func (f *listFlags) more(w *cli.Page, n int, last string) {
	fmt.Fprintf(w, "the first %d; there are more: ", n)
	switch {
	case f.order != string(lockadmin.OrderName) || last == "":
		fmt.Fprintln(w, "raise --limit, or narrow with --match")
	default:
		fmt.Fprintf(w, "narrow with --match, or go on with --after %s\n", shown.Name(last))
	}
}

// read checks the flags, and reads the name of a lock if there is one.
func (f *listFlags) read(cmd *cobra.Command, args []string) (name string, err error) {
	if err := f.check(cmd); err != nil {
		return "", err
	}
	if f.after, err = cli.Unquoted(f.after); err != nil {
		return "", cli.UsageErrorf("the name as list shows it",
			`--after is %s: a name that begins with " must be quoted as in the output of list`, shown.Text(f.after))
	}
	return cli.OptionalName(cmd, args)
}

// ends are the limit and the size of a page that tell whether there are more than --limit.
func (f *listFlags) ends() (limit, page int) {
	if f.order == string(lockadmin.OrderName) {
		return 0, f.limit + 1
	}
	return f.limit + 1, 0
}

func (f *listFlags) filtered() bool {
	return f.prefix+f.match+f.holder+f.session+f.mode+f.after != "" || f.queued || f.older > 0
}
