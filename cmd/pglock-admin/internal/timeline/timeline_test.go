package timeline

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const ms = time.Millisecond

func example() *Timeline {
	a, b, balance := &Row{Label: "A"}, &Row{Label: "B"}, &Row{Label: "balance"}
	a.Add(Span{Kind: Held, From: 0, To: Open, Text: "token 1", Short: "1"})
	a.Add(Span{Kind: HeldStopped, From: 300 * ms, To: 1000 * ms})
	a.Add(Span{Kind: Stopped, From: 1000 * ms, To: Open})
	a.Note(1800*ms, Bad, Refused)
	a.End(1800 * ms)
	b.Add(Span{Kind: Waiting, From: 300 * ms, To: Open})
	b.Add(Span{Kind: Held, From: 1000 * ms, To: Open, Text: "token 2", Short: "2"})
	b.End(1500 * ms)
	b.Note(1500*ms, Good, Written)
	balance.Note(0, Plain, "1000")
	balance.Note(1500*ms, Good, "1060")
	return &Timeline{Rows: []*Row{a, b, balance}}
}

func TestDrawShowsWhoHeldTheLockWhen(t *testing.T) {
	got := strings.Join(example().Draw(2000*ms, 54, false), "\n")
	want := strings.TrimPrefix(`
         0s        0.5s      1s        1.5s
         ┬─────────┬─────────┬─────────┬─────────
 A       █1████▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░░░░░░░✘
 B             ··············█token 2██✔
 balance 1000                          1060`, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDrawShowsNoSpanThatIsToCome(t *testing.T) {
	lines := example().Draw(500*ms, 54, false)
	if strings.Contains(lines[2], "░") || !strings.Contains(lines[2], "▒▒▒") {
		t.Errorf("A is stopped, and its lease has not ended: %s", lines[2])
	}
}

func TestDrawKeepsToItsWidth(t *testing.T) {
	timeline := example()
	for i := range 20 {
		timeline.Rows[2].Note(1900*ms+time.Duration(i)*ms, Plain, "123456")
	}
	for _, width := range []int{60, 80, 110} {
		for _, now := range []time.Duration{0, 1, 300 * ms, 1800 * ms, 2000 * ms, 9 * time.Second, time.Hour} {
			for _, line := range timeline.Draw(now, width, false) {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("%d columns of %d at %v: %q", n, width, now, line)
				}
			}
		}
	}
	for width, lines := range map[int]int{40: 3, 80: 1} {
		legend := Legend(width, false)
		for _, line := range legend {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("the legend has %d columns of %d: %q", n, width, line)
			}
		}
		said := strings.Join(legend, "\n")
		if len(legend) != lines || !strings.Contains(said, "lease over") || !strings.Contains(said, "late") {
			t.Errorf("the legend in %d columns: %q", width, said)
		}
	}
}

func TestTheLastNoteAlwaysStands(t *testing.T) {
	r := &Row{Label: "balance"}
	for i, text := range []string{"1000", "1010", "1020", "1030"} {
		r.Note(time.Duration(i)*ms, Plain, text)
	}
	line := (&Timeline{Rows: []*Row{r}}).Draw(time.Second, 80, false)[2]
	if !strings.Contains(line, "1030") {
		t.Error(line)
	}
}

func TestColourAddsNothingButSequences(t *testing.T) {
	plain, coloured := example().Draw(2000*ms, 80, false), example().Draw(2000*ms, 80, true)
	for i := range plain {
		var b strings.Builder
		for rest := coloured[i]; rest != ""; {
			if rest[0] == 0x1b {
				_, rest, _ = strings.Cut(rest, "m")
				continue
			}
			b.WriteByte(rest[0])
			rest = rest[1:]
		}
		if b.String() != plain[i] {
			t.Errorf("%q without colours, %q with", plain[i], b.String())
		}
	}
	if strings.Contains(strings.Join(append(plain, Legend(80, false)...), ""), "\x1b") {
		t.Error("sequences without colour")
	}
}
