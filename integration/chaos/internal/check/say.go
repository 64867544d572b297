//go:build unix

package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// What was written down, as lines for people. Times are seconds of the machine's monotonic clock.

// SayTime is a moment for people.
func SayTime(t history.Time) string { return sayTime(t) }

func sayTime(t history.Time) string {
	return fmt.Sprintf("%d.%06d", int64(t)/int64(time.Second), int64(t)%int64(time.Second)/1000)
}

func sayWho(who int64) string {
	return fmt.Sprintf("worker %d, life %d,", who/history.Lives, who%history.Lives)
}

func sayEvent(e history.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s w%d.%d %s", sayTime(e.At), e.Who/history.Lives, e.Who%history.Lives, e.Kind)
	field := func(name string, value any, there bool) {
		if there {
			fmt.Fprintf(&b, " %s=%v", name, value)
		}
	}
	field("how", e.How, e.How != "")
	for _, n := range append(append([]string(nil), e.Names...), e.Resources...) {
		b.WriteString(" " + quoted(n))
	}
	field("lock", quoted(e.Name), e.Name != "")
	field("mode", e.Mode, e.Mode != "")
	field("subtree", e.Subtree, e.Subtree)
	field("owner", e.Owner, e.Owner != 0)
	field("slot", e.Slot, e.Slot != 0)
	field("token", e.Token, e.Token != 0)
	field("ttl", e.TTL, e.TTL != 0)
	field("call", e.Call, e.Call != 0)
	field("lease", e.Lease, e.Lease != 0)
	field("op", e.Op, e.Op != 0)
	field("label", e.Label, e.Label != "")
	field("valid until at least", sayTime(e.Until), e.Until != 0)
	field("from", sayTime(e.From), e.From != 0)
	field("answer", e.Answer, e.Answer != "")
	field("class", e.Class, e.Class != "")
	field("goroutines before", e.Before, e.Before != 0)
	field("after", e.Goroutines, e.Goroutines != 0)
	if e.Kind != history.Stuck && e.Kind != history.Drained && e.Kind != history.Closed && e.Kind != history.Stormed {
		field("error", e.Error, e.Error != "")
	}
	return b.String()
}

// subtreeOf stands behind a mode.
func subtreeOf(subtree bool) string {
	if subtree {
		return " of the subtree"
	}
	return ""
}

func sayMoment(w history.Wall, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return sayTime(w.Time(t))
}

func sayVersion(w history.Wall, c history.Commit, v history.Version) string {
	if v.Gone {
		return fmt.Sprintf("%s server: xid %d removed lock=%s slot=%d", sayMoment(w, c.At), c.Xid, quoted(v.Name),
			v.Slot)
	}
	return fmt.Sprintf("%s server: xid %d lock=%s slot=%d mode=%s%s token=%d holder=%s grant=%.8s acquired=%s "+
		"expires=%s ended=%s", sayMoment(w, c.At), c.Xid,
		quoted(v.Name), v.Slot, v.Mode, subtreeOf(v.Subtree), v.Token, v.Holder, v.Grant, sayMoment(w, v.AcquiredAt),
		sayMoment(w, v.ExpiresAt), sayMoment(w, v.EndedAt))
}

func sayLink(w history.Wall, c history.Commit, l history.Link) string {
	return fmt.Sprintf("%s server: xid %d %s", sayMoment(w, c.At), c.Xid, describe(l))
}

// describe is a piece of evidence as a line.
func describe(e any) string {
	switch e := e.(type) {
	case string:
		return e
	case history.Link:
		return fmt.Sprintf("link resource=%s op=%d on op=%d lock=%s slot=%d token=%d again=%v", quoted(e.Resource),
			e.Op, e.Prev, quoted(e.Lock), e.Slot, e.Token, e.Again)
	case *belief:
		return fmt.Sprintf("%s lease=%d of lock=%s mode=%s%s slot=%d token=%d ttl=%v was valid from %s to %s at least",
			sayWho(e.who), e.lease, quoted(e.name), e.mode, subtreeOf(e.subtree),
			e.slot, e.token, e.ttl, sayTime(e.from), sayTime(e.until))
	case *tenure:
		return fmt.Sprintf("tenure lock=%s slot=%d mode=%s%s token=%d holder=%s from %s to %s by the server's clock",
			quoted(e.name), e.slot, e.mode, subtreeOf(e.subtree), e.token,
			e.holder, sayTime(e.from), sayTime(e.to))
	case history.Holder:
		return fmt.Sprintf("the server lists lock=%s slot=%d token=%d holder=%s acquired at %s, expires at %s",
			quoted(e.Name), e.Slot, e.Token, e.Label, sayTime(e.AcquiredAt), sayTime(e.ExpiresAt))
	case history.Ticket:
		return fmt.Sprintf("the server lists ticket %d of lock=%s, place %d, of %s, alive: %v, since %s", e.Number,
			quoted(e.Name), e.Place, e.Label, e.Alive, sayTime(e.Since))
	}
	return fmt.Sprint(e)
}
