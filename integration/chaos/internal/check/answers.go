//go:build unix

package check

import (
	"fmt"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// answers checks that the callers of writes were told the truth: a write answered nil is never lost, and a write with
// another answer, except "unknown", is never applied.
type answers struct {
	*court
	writes    map[int64]*written
	committed map[int64]int // links of each write that the server has now
	waiting   []*written    // answered nil, and not yet found
	marks     map[int64]history.Time
}

// written is one write.
type written struct {
	op        int64
	who       int64
	how       string
	resources []string
	answer    string
	ended     history.Time
	forgiven  bool // a failover may have lost it
}

func newAnswers(c *court) answers {
	return answers{court: c, writes: make(map[int64]*written), committed: make(map[int64]int),
		marks: make(map[int64]history.Time)}
}

func (a *answers) event(e history.Event) {
	switch e.Kind {
	case history.Writes:
		a.writes[e.Op] = &written{op: e.Op, who: e.Who, how: e.How, resources: e.Resources}
	case history.Wrote, history.Learns:
		w := a.writes[e.Op]
		if w == nil || e.Answer == history.Unknown {
			return
		}
		w.answer, w.ended = e.Answer, e.At
		if e.Answer == history.Done {
			a.waiting = append(a.waiting, w)
			return
		}
		if a.committed[e.Op] > 0 {
			a.blameApplied(w, e.At)
		}
	}
}

func (a *answers) link(l history.Link, at history.Time) {
	a.committed[l.Op]++
	if w := a.writes[l.Op]; w != nil && w.answer == history.Refused {
		a.blameApplied(w, at)
	}
}

func (a *answers) blameApplied(w *written, at history.Time) {
	a.blame("refused applied", at, append(w.resources, fmt.Sprint(w.op)),
		fmt.Sprintf("%s by %s was answered with an error that says it was not applied, and it is there", w,
			sayWho(w.who)))
}

func (w *written) String() string {
	return fmt.Sprintf("write %d (%s) to %q", w.op, w.how, w.resources)
}

// marked notes that the order of commits has reached a mark.
func (a *answers) marked(n int64) {
	sent, known := a.marks[n]
	if !known {
		return
	}
	for m := range a.marks {
		if m <= n {
			delete(a.marks, m)
		}
	}
	kept := a.waiting[:0]
	for _, w := range a.waiting {
		if w.ended >= sent {
			kept = append(kept, w)
			continue
		}
		a.find(w)
	}
	a.waiting = kept
}

// find checks that a write that was answered nil is there.
func (a *answers) find(w *written) {
	if n := a.committed[w.op]; n != len(w.resources) && !w.forgiven {
		w.forgiven = true // once is enough
		a.blame("nil lost", w.ended, w.resources, fmt.Sprintf("%s by %s was answered nil at %s, and %d of its %d "+
			"links are there", w, sayWho(w.who), sayTime(w.ended), n, len(w.resources)))
	}
}

// promoted compares with what the new primary has. Only what the old primary answered after the standby was cut off may
// be missing, and what nobody has read the answer of yet: its process may have stood still since then.
func (a *answers) promoted(p history.Promotion) {
	a.take(p.State)
	for _, w := range a.writes {
		lost := w.answer == "" || w.answer == history.Done && w.ended >= p.Safe && w.ended <= p.Opened
		if p.Lossy && lost && a.committed[w.op] == 0 {
			w.forgiven = true
		}
	}
	a.verify()
}

func (a *answers) finish(s history.State) {
	a.take(s)
	a.verify()
}

func (a *answers) take(s history.State) {
	clear(a.committed)
	for _, l := range s.Links {
		a.committed[l.Op]++
	}
}

func (a *answers) verify() {
	a.waiting = nil
	for _, w := range a.writes {
		switch w.answer {
		case history.Done:
			a.find(w)
		case history.Refused:
			if a.committed[w.op] > 0 {
				a.blameApplied(w, w.ended)
			}
		}
	}
}
