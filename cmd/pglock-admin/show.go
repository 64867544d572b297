package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/pglock"
)

type showView struct {
	Lock   lockView       `json:"lock"`
	Fences []pglock.Fence `json:"fences"`
	Events []pglock.Event `json:"events"`         // newest first; null without the right to read them
	Note   string         `json:"note,omitempty"` // why there are none
}

func newShow(o *options) *cobra.Command {
	var events int
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show everything about one lock",
		Long: `Show one lock, held or free: its last holder, its fencing token, its lease, the fences that its tokens have passed, and
the last events of its audit (breaks, takeovers after an expiry, refused stale writes). Events need the role pglock_admin.`,
		Example: `  pglock-admin show nightly-report`,
		Args:    oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if events < 1 || events > 10000 {
				return usageErrorf("--events 10", "--events is %d: it must be from 1 to 10000", events)
			}
			return o.withClient(cmd.Context(), func(ctx context.Context, client *pglock.Client) error {
				view, err := look(ctx, client, args[0], events)
				if err != nil {
					return err
				}
				return o.show(cmd, view, func(w io.Writer) { drawShow(w, view) })
			})
		},
	}
	cmd.Flags().IntVar(&events, "events", 10, "show at most so `many` of the last events")
	return cmd
}

func look(ctx context.Context, client *pglock.Client, name string, events int) (showView, error) {
	info, err := client.Get(ctx, name)
	if err != nil {
		return showView{}, err
	}
	view := showView{Lock: viewOf(info)}
	if view.Fences, err = client.Fences(ctx, name); err != nil {
		return showView{}, err
	}
	if view.Fences == nil {
		view.Fences = []pglock.Fence{}
	}
	view.Events, err = client.Events(ctx, name, events)
	switch {
	case errors.Is(err, pglock.ErrPermission):
		view.Note = "events are for operators: GRANT pglock_admin to this user to see them"
	case err != nil:
		return showView{}, err
	case view.Events == nil:
		view.Events = []pglock.Event{}
	}
	return view, nil
}

func drawShow(w io.Writer, v showView) {
	i := v.Lock.Info
	fields := [][2]string{{"lock", printable(i.Name)}}
	if i.Held {
		fields = append(fields, [2]string{"state", "held for " + age(heldFor(i))},
			[2]string{"lease", fmt.Sprintf("%s %s of %s left", leaseBar(i.Remaining, i.TTL), age(i.Remaining), i.TTL)})
	} else {
		fields = append(fields, [2]string{"state", "FREE"}, [2]string{"ttl", i.TTL.String()})
	}
	holder := "holder"
	if !i.Held {
		holder = "last holder"
	}
	metadata := ""
	if len(i.Metadata) > 0 {
		metadata = printable(string(i.Metadata))
		if allPrint(string(i.Metadata)) {
			metadata = string(i.Metadata)
		}
	}
	fields = append(fields, [2]string{holder, printable(i.Holder)}, [2]string{"session", i.Session},
		[2]string{"token", strconv.FormatInt(int64(i.Token), 10)}, [2]string{"acquired", moment(i.AcquiredAt)},
		[2]string{"renewed", moment(i.RenewedAt)}, [2]string{"expires", moment(i.ExpiresAt)},
		[2]string{"ended", moment(i.EndedAt)}, [2]string{"metadata", metadata})
	drawFields(w, fields)
	if len(v.Fences) > 0 {
		fmt.Fprintln(w)
		var rows [][]string
		for _, f := range v.Fences {
			rows = append(rows, []string{printable(f.Resource), strconv.FormatInt(int64(f.LastToken), 10), printable(f.Lock), moment(f.AdvancedAt)})
		}
		drawTable(w, []string{"FENCE OF", "LAST TOKEN", "LOCK", "ADVANCED"}, rows, 1)
	}
	if len(v.Events) > 0 {
		fmt.Fprintln(w)
		var rows [][]string
		for _, e := range v.Events {
			rows = append(rows, []string{moment(e.At), e.Kind, tell(e)})
		}
		drawTable(w, []string{"WHEN", "EVENT", "WHAT"}, rows)
	}
	if v.Note != "" {
		fmt.Fprintf(w, "\n%s\n", v.Note)
	}
}

// tell is an event in words.
func tell(e pglock.Event) string {
	switch e.Kind {
	case "break":
		return fmt.Sprintf("token %d of %s ended by %s (%s), next above %d: %s", e.Token, printable(e.Holder),
			printable(e.Actor), printable(e.DBUser), e.NewToken, printable(e.Reason))
	case "takeover":
		return fmt.Sprintf("token %d of %s expired; %s has token %d", e.Token, printable(e.Holder), printable(e.Actor), e.NewToken)
	case "stale write":
		return fmt.Sprintf("token %d of %s refused at the fence of %s, where token %d had passed", e.Token,
			printable(e.Holder), printable(e.Resource), e.NewToken)
	}
	return fmt.Sprintf("token %d, new token %d", e.Token, e.NewToken)
}
