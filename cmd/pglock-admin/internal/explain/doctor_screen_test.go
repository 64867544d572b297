package explain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/lockadmin"
)

// At any width doctor says everything, in lines that fit.
func TestDoctorFitsANarrowTerminal(t *testing.T) {
	t.Parallel()
	f := lockadmin.Finding{Item: "client_connection_check_interval", Severity: lockadmin.SeverityOK,
		Value: "can be set on this server",
		Meaning: "A client that is gone is noticed while its statement runs, so that nobody waits for what it has " +
			"locked."}
	v := DoctorView{Findings: []lockadmin.Finding{f, {Item: "epoch", Severity: lockadmin.SeverityNote, Value: "7",
		Meaning: "short"}}}
	for width, lines := range map[int]int{40: 9, 60: 7, 80: 6} { // at least so many
		p := &cli.Page{Width: width}
		drawDoctor(p, v)
		said := p.String()
		if n := strings.Count(said, "\n"); n < lines {
			t.Errorf("at %d it has %d lines, want %d:\n%s", width, n, lines, said)
		}
		words := func(s string) string { return strings.Join(strings.Fields(s), "") } // a long one may be broken
		if want := strings.Join([]string{"OK", f.Item, f.Value, f.Meaning, "NOTE epoch 7 short", v.summary()},
			" "); words(said) != words(want) {
			t.Errorf("at %d it says\n%s\nwant\n%s", width, said, want)
		}
		for line := range strings.Lines(said) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > width {
				t.Errorf("at %d: %d columns: %s", width, n, line)
			}
		}
	}
}

func TestDoctorWritesWhatItsFileHas(t *testing.T) {
	t.Parallel()
	const badName = "evil\x1b[2J\u202e<b>\n$(id)"
	v := DoctorView{Findings: []lockadmin.Finding{
		{Item: "schema", Severity: lockadmin.SeverityOK, Value: "pglock, version 1", Meaning: "The version that this " +
			"library needs."},
		{Item: "guard of public." + badName, Severity: lockadmin.SeverityWarning, Value: badName,
			Meaning: "A sentence about " + badName + " that is longer than a narrow terminal is wide."},
		{Item: "synchronous_standby_names", Severity: lockadmin.SeverityNote, Value: "empty",
			Meaning: "A failover may lose commits."},
	}}
	v.Attention = attention(v.Findings)
	var paper strings.Builder
	for _, columns := range []int{0, 40, 120} {
		p := &cli.Page{Width: columns}
		drawDoctor(p, v)
		fmt.Fprintf(&paper, "# %d columns\n%s\n", columns, p)
	}
	screens.Compare(t, "testdata/doctor.golden", paper.String())
}
