//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// outages is what clients saw of each fault of the leader: how long nobody was granted anything, which leases lived on,
// and what errors there were.
type outages struct {
	mu   sync.Mutex
	all  []*seen
	now  *seen                   // the one that lasts
	kept map[int64]history.Event // leases that are held for ever, and are valid
	last [ways]history.Time      // the last grant by each way
}

// The ways are the list of servers, and HAProxy.
const ways = 2

// seen is what clients saw of one fault.
type seen struct {
	name    string
	longest [ways]time.Duration     // without a grant
	before  map[int64]history.Event // leases that were held for ever when it began
	lost    map[int64]bool
	errors  map[string]int
}

func (o *outages) begin(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = &seen{name: name, before: make(map[int64]history.Event), lost: make(map[int64]bool),
		errors: make(map[string]int)}
	for id, e := range o.kept {
		o.now.before[id] = e
	}
	now := history.Now()
	for i := range o.last {
		o.last[i] = now // a pause before it is not of the fault
	}
	o.all = append(o.all, o.now)
}

func (o *outages) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for way := range o.last {
		o.now.longest[way] = max(o.now.longest[way], history.Now().Sub(o.last[way]))
	}
	o.now = nil
}

// event hears what the workers say.
func (o *outages) event(e history.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	way := int(e.Who/history.Lives) % ways
	switch e.Kind {
	case history.Has:
		if e.How == history.Kept {
			if o.kept == nil {
				o.kept = make(map[int64]history.Event)
			}
			o.kept[e.Lease] = e
		}
		if o.now != nil && o.last[way] < e.At {
			o.now.longest[way] = max(o.now.longest[way], e.At.Sub(o.last[way]))
		}
		o.last[way] = max(o.last[way], e.At)
	case history.Lets:
		delete(o.kept, e.Lease)
		if o.now != nil {
			o.now.lost[e.Lease] = true
		}
	}
	failed := slices.Contains([]history.Kind{history.Fails, history.Wrote, history.Renews, history.Left}, e.Kind)
	if o.now != nil && failed && e.Class != "" && !ordinary[e.Class] {
		o.now.errors[e.Class]++
	}
}

// ordinary are the errors that come about without any fault.
var ordinary = map[string]bool{"held": true, "already done": true, "self-deadlock": true, "circle": true,
	"own retreat": true, "cancelled": true, "stale token": true, "unfenced": true, "released": true}

// table shows them.
func (o *outages) table() table.Writer {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) == 0 {
		return nil
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"fault", "no grant, hosts", "no grant, HAProxy", "leases that survived, by TTL", "errors"})
	for _, s := range o.all {
		var survived, errs []string
		for _, ttl := range keepTTLs {
			n, lived := 0, 0
			for id, e := range s.before {
				if e.TTL == ttl {
					n++
					if !s.lost[id] {
						lived++
					}
				}
			}
			survived = append(survived, fmt.Sprintf("%v %d/%d", ttl, lived, n))
		}
		for _, class := range sorted(s.errors) {
			errs = append(errs, fmt.Sprintf("%s %d", class, s.errors[class]))
		}
		t.AppendRow(table.Row{s.name, s.longest[0].Round(10 * time.Millisecond),
			s.longest[1].Round(10 * time.Millisecond), strings.Join(survived, ", "), strings.Join(errs, ", ")})
	}
	return t
}
