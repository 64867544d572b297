package live

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// liveBreak is the lease that somebody wants to break. It does not change while the question is on the screen.
type liveBreak struct {
	name   string
	holder string
	token  pglock.Token
	reason string

	sent bool
	hint string // what is wrong with the reason
}

type liveBroken struct {
	asked  liveBreak
	broken lockadmin.Broken
	failed *cli.Problem

	unknown bool // whether it was broken
}

// breakLease breaks exactly the lease with that token.
func (r *liveReader) breakLease(ctx context.Context, b liveBreak) liveBroken {
	bounded, cancel := r.o.Bounded(ctx)
	defer cancel()
	broken, err := r.admin.Break(bounded, b.name, b.reason,
		lockadmin.BreakOptions{Token: &b.token, Actor: cli.Actor()})
	if err != nil {
		err = act.Unbroken(bounded, r.o, r.admin, b.name, int64(b.token), err)
	}
	operator := *r.o
	operator.Role = cli.OperatorRole
	if err = cli.Because(bounded, operator.WithRights(bounded, r.pool, err)); err != nil {
		unknown := act.UnknownOutcome(err) || ctx.Err() != nil
		if ctx.Err() != nil { // somebody has ended the screen
			err = act.UnknownBreak(nil, act.SeeWhether(r.o, b.name))
		}
		p := r.o.Diagnose(ctx, err)
		return liveBroken{asked: b, failed: &p, unknown: unknown}
	}
	return liveBroken{asked: b, broken: broken}
}

// typed adds to the reason what prints, up to the most that the history takes.
func (b *liveBreak) typed(text string) {
	b.reason, b.hint = typedInto(b.reason, text, lockadmin.MaxReasonBytes), ""
}

// typedInto adds a text to one that somebody types, without what does not print.
func typedInto(text, more string, most int) string {
	for _, r := range more {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			r = ' '
		case r == utf8.RuneError:
			continue
		}
		if next := text + string(r); len(next) <= most && evenEnd(next) {
			text = next
		}
	}
	return text
}

// evenEnd reports whether the last rune of a text is even, and does not join the one before it.
func evenEnd(text string) bool {
	_, size := utf8.DecodeLastRuneInString(text)
	_, before := utf8.DecodeLastRuneInString(text[:len(text)-size])
	_, even := evenCells(text[len(text)-size-before:])
	return even
}

func rubbedOut(text string) string {
	_, size := utf8.DecodeLastRuneInString(text)
	return text[:len(text)-size]
}

func (b *liveBreak) draw(width int, held bool) []string {
	lines := []string{liveAlarm(fit("BREAK THIS LEASE", width))}
	field := func(title, value string) { lines = append(lines, fit(fit(title, 8)+value, width)) }
	lines = append(lines, fit("lock    "+shorten(cellName(b.name), max(0, width-8)), width))
	field("holder", shorten(cellText(b.holder), max(0, width-8)))
	field("token", fmt.Sprint(int64(b.token)))
	switch {
	case b.sent:
		field("reason", lastCells(b.reason, width-8))
		return append(lines, fit("breaking it …", width))
	case !held:
		ended := choose(width, "This lease has ended meanwhile. Enter breaks nothing.", "It has ended: Enter breaks "+
			"nothing.")
		lines = append(lines, liveAlarm(fit(ended, width)))
	}
	field("reason", lastCells(b.reason, width-9)+"▏")
	if b.hint != "" {
		lines = append(lines, liveAlarm(fit(b.hint, width)))
	}
	keys := choose(width, fmt.Sprintf("Enter breaks token %d and no other   Esc goes back", int64(b.token)),
		"Enter breaks it   Esc goes back")
	return append(lines, liveFaint(fit(keys, width)))
}

// lastCells keeps the end of a text that is too long, where somebody types.
func lastCells(s string, width int) string {
	back := len(s)
	for used := 0; back > 0; {
		r, size := utf8.DecodeLastRuneInString(s[:back])
		if used += cells(string(r)); used > width {
			break
		}
		back -= size
	}
	return s[back:]
}

func (b liveBroken) told() string {
	switch {
	case b.failed == nil:
		return fmt.Sprintf("Broke token %d of %s. Every later token is above %d. "+
			"Its program may still run: what it writes without a fence arrives.",
			int64(b.broken.Token), shown.Text(b.broken.Holder), int64(b.broken.NewToken))
	case b.unknown:
		return fmt.Sprintf("Token %d: %s. Try: %s", int64(b.asked.token), b.failed.Message, b.failed.Hint)
	}
	why := strings.TrimPrefix(strings.TrimSuffix(b.failed.Message, "; nothing was broken"), "nothing was broken ")
	return "Nothing was broken: " + why + ". Try: " + b.failed.Hint
}
