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

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestEveryAllowedStoryIsShorterThanAQuarterOfAMinute(t *testing.T) {
	for workers := minWorkers; workers <= maxWorkers; workers++ {
		for _, ttl := range []time.Duration{minTTL, defaultTTL, maxTTL} {
			o := options{workers: workers, ttl: ttl}
			must.Do(t, o.check())
			p, others := o.pace(), time.Duration(workers-1)
			// A waiting worker may see the end of a lease a quarter of the TTL late.
			act := ttl + ttl/10 + ttl/4 + others*(p.working+p.overlap) + p.pause + 150*time.Millisecond
			if d := 2*act + p.working; d > 13*time.Second { // the refused worker starts over
				t.Errorf("%d workers, TTL %v: %v", workers, ttl, d)
			}
		}
	}
}

func TestOptionsOutsideTheBoundsAreRefused(t *testing.T) {
	for _, o := range []options{
		{workers: minWorkers - 1, ttl: defaultTTL}, {workers: maxWorkers + 1, ttl: defaultTTL},
		{workers: minWorkers, ttl: minTTL - 1}, {workers: minWorkers, ttl: maxTTL + 1},
	} {
		var refused *cli.Advised
		if err := play(t.Context(), o); !errors.As(err, &refused) || refused.Code != cli.ExitUsage {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestTheSeedDeterminesNamesAndAmounts(t *testing.T) {
	for seed := range uint64(50) {
		a, b := newStory(seed, maxWorkers), newStory(seed, maxWorkers)
		if a.account != b.account || !slices.Equal(a.names, b.names) || !slices.Equal(a.deposits, b.deposits) {
			t.Fatalf("seed %d: %+v and %+v", seed, a, b)
		}
		slices.Sort(a.deposits)
		slices.Sort(a.names)
		if len(slices.Compact(a.deposits)) != maxWorkers || len(slices.Compact(a.names)) != maxWorkers {
			t.Errorf("seed %d: two workers are alike: %+v", seed, b)
		}
	}
	if a, b := newStory(1, 2), newStory(2, 2); slices.Equal(a.deposits, b.deposits) && slices.Equal(a.names, b.names) {
		t.Error("two seeds, one story")
	}
}

// ended is a play that ended as it must; the tests of verdict change one thing each.
func ended() *performance {
	p := &performance{options: options{workers: 2}, story: story{deposits: []int64{50, 70}}}
	p.outcomes = []outcome{{balance: 1050, accepted: 2}, {balance: 1120, accepted: 2}}
	p.results = []result{{act: 1, late: true}, {act: 2}, {act: 2, late: true, report: report{Says: saysRefused,
		State: "LK003"}}, {act: 2}}
	return p
}

func TestTheVerdictIsNilForTheStoryAsTold(t *testing.T) {
	must.Note(t, ended().verdict())
}

func TestTheVerdictNamesWhatWentWrong(t *testing.T) {
	for want, change := range map[string]func(*performance){
		"NOT refused":              func(p *performance) { p.results[2].Says = saysWrote },
		"stale write was NOT":      func(p *performance) { p.results[2].State = "40001" },
		"with the fence":           func(p *performance) { p.outcomes[1].balance = 1050 },
		"without the fence":        func(p *performance) { p.outcomes[0].balance = 1120 },
		"after 3 writes, not 1120": func(p *performance) { p.outcomes[1].accepted = 3 },
		"1 acts":                   func(p *performance) { p.outcomes = p.outcomes[:1] },
	} {
		p := ended()
		change(p)
		if err := p.verdict(); !errors.Is(err, errStory) || !strings.Contains(err.Error(), want) {
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
	if err := work(ctx, in, out); err == nil {
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
