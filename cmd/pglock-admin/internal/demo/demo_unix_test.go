//go:build unix

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestEveryAllowedStoryIsShorterThanAQuarterOfAMinute(t *testing.T) {
	for workers := MinWorkers; workers <= MaxWorkers; workers++ {
		for _, ttl := range []time.Duration{MinTTL, DefaultTTL, MaxTTL} {
			o := Options{Workers: workers, TTL: ttl}
			if err := o.Check(); err != nil {
				t.Fatal(err)
			}
			// A waiting worker may see the end of a lease a quarter of the TTL late.
			if d := o.expectedLength(false) + o.expectedLength(true) + ttl/2; d > 13*time.Second {
				t.Errorf("%d workers, TTL %v: %v", workers, ttl, d)
			}
		}
	}
}

func TestOptionsOutsideTheBoundsAreRefused(t *testing.T) {
	for _, o := range []Options{
		{Workers: MinWorkers - 1, TTL: DefaultTTL}, {Workers: MaxWorkers + 1, TTL: DefaultTTL},
		{Workers: MinWorkers, TTL: MinTTL - 1}, {Workers: MinWorkers, TTL: MaxTTL + 1},
	} {
		var option *OptionError
		if err := Run(t.Context(), o); !errors.As(err, &option) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestTheSeedDeterminesNamesAndAmounts(t *testing.T) {
	for seed := range uint64(50) {
		a, b := newStory(seed, MaxWorkers), newStory(seed, MaxWorkers)
		if a.account != b.account || !slices.Equal(a.names, b.names) || !slices.Equal(a.deposits, b.deposits) {
			t.Fatalf("seed %d: %+v and %+v", seed, a, b)
		}
		slices.Sort(a.deposits)
		slices.Sort(a.names)
		if len(slices.Compact(a.deposits)) != MaxWorkers || len(slices.Compact(a.names)) != MaxWorkers {
			t.Errorf("seed %d: two workers are alike: %+v", seed, b)
		}
	}
	if a, b := newStory(1, 2), newStory(2, 2); slices.Equal(a.deposits, b.deposits) && slices.Equal(a.names, b.names) {
		t.Error("two seeds, one story")
	}
}

// ended is a play that ended as it must; the tests of verdict change one thing each.
func ended() *play {
	p := &play{Options: Options{Workers: 2}, story: story{deposits: []int64{50, 70}}}
	p.outcomes = []outcome{{balance: 1050, accepted: 2}, {balance: 1120, accepted: 2}}
	p.results = []result{{act: 1, late: true}, {act: 2}, {act: 2, late: true, refused: true, state: "LK003"}, {act: 2}}
	return p
}

func TestTheVerdictIsNilForTheStoryAsTold(t *testing.T) {
	if err := ended().verdict(); err != nil {
		t.Error(err)
	}
}

func TestTheVerdictNamesWhatWentWrong(t *testing.T) {
	for want, change := range map[string]func(*play){
		"NOT refused":              func(p *play) { p.results[2].refused = false },
		"stale write was NOT":      func(p *play) { p.results[2].state = "40001" },
		"with the fence":           func(p *play) { p.outcomes[1].balance = 1050 },
		"without the fence":        func(p *play) { p.outcomes[0].balance = 1120 },
		"after 3 writes, not 1120": func(p *play) { p.outcomes[1].accepted = 3 },
		"1 acts":                   func(p *play) { p.outcomes = p.outcomes[:1] },
	} {
		p := ended()
		change(p)
		if err := p.verdict(); !errors.Is(err, ErrStory) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestAWorkerThatCannotBeginSaysWhy(t *testing.T) {
	line, err := json.Marshal(setup{URL: "postgres://127.0.0.1:1/x", Schema: "s", Account: "a", Holder: "A",
		TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	in, out := newPipe(line)
	if err := Work(ctx, in, out); err == nil {
		t.Error("no error")
	}
	in.Close()
	if !strings.Contains(out.String(), `"says":"failed"`) {
		t.Error(out.String())
	}
}

// pipe gives a line and then blocks until it is closed, as the standard input of a worker does.
type pipe struct {
	line   []byte
	closed chan struct{}
}

func newPipe(line []byte) (*pipe, *bytes.Buffer) {
	return &pipe{line: append(line, '\n'), closed: make(chan struct{})}, &bytes.Buffer{}
}

func (p *pipe) Read(b []byte) (int, error) {
	if len(p.line) > 0 {
		n := copy(b, p.line)
		p.line = p.line[n:]
		return n, nil
	}
	<-p.closed
	return 0, context.Canceled
}

func (p *pipe) Close() { close(p.closed) }

func TestClipNeverCutsASequence(t *testing.T) {
	line := "ab\x1b[31mcd\x1b[0mef"
	for width := 1; width <= 8; width++ {
		got := clip(line, width)
		if n := visible(got); n > width {
			t.Errorf("%d columns of %d: %q", n, width, got)
		}
		if strings.Count(got, "\x1b") != strings.Count(got, "m") {
			t.Errorf("%q", got)
		}
	}
	if got := visible(line); got != 6 {
		t.Errorf("%d columns", got)
	}
}
