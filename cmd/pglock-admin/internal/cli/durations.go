package cli

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/internal/shown"
)

// DurationFlag is a flag that understands days and weeks too.
type DurationFlag struct{ d *time.Duration }

func (f DurationFlag) String() string {
	if f.d == nil {
		return ""
	}
	return shown.Duration(*f.d)
}

func (f DurationFlag) Set(s string) (err error) {
	*f.d, err = parseDuration(s)
	return err
}

func (DurationFlag) Type() string { return "duration" }

// DurationVar defines a duration flag, with what d holds as its default. Help does not show a default of 0: it stands
// for "not given".
func DurationVar(flags *pflag.FlagSet, d *time.Duration, name string, usage string) {
	flags.Var(DurationFlag{d}, name, usage)
	if *d == 0 {
		flags.Lookup(name).DefValue = ""
	}
}

var errDuration = errors.New("it must be a duration such as 90s, 36h, 1d12h, 90d or 2w")

// daysOrWeeks matches days or weeks at the beginning of a duration; time.ParseDuration does not know them.
var daysOrWeeks = regexp.MustCompile(`^(\d+(?:\.\d+)?)([dw])`)

func parseDuration(s string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(s, "-")
	var total float64
	for m := daysOrWeeks.FindStringSubmatch(rest); m != nil; m = daysOrWeeks.FindStringSubmatch(rest) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, errDuration
		}
		unit := 24 * time.Hour
		if m[2] == "w" {
			unit *= 7
		}
		total += n * float64(unit)
		rest = rest[len(m[0]):]
	}
	var d time.Duration
	if rest != "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil || strings.ContainsAny(rest[:1], "+-") && rest != s {
			return 0, errDuration
		}
	} else if s == "" || s == "-" {
		return 0, errDuration
	}
	if total+float64(d) >= math.MaxInt64 {
		return 0, errors.New("it must be less than 292 years")
	}
	if d += time.Duration(total); negative {
		d = -d
	}
	return d, nil
}
