package model

import (
	"fmt"
	"strings"
)

// Story tells a trace: each step, and what has changed by it.
func (m *Model) Story(trace []Step[State, Label]) string {
	var b strings.Builder
	last := m.facts(m.Start())
	for i, s := range trace {
		now := m.facts(s.To)
		var changed []string
		for j := range now {
			if now[j] != last[j] {
				changed = append(changed, now[j])
			}
		}
		fmt.Fprintf(&b, "%3d  %-38s %s\n", i+1, s.Label, strings.Join(changed, " | "))
		last = now
	}
	return b.String()
}

// facts says what there is, fact by fact.
func (m *Model) facts(s State) (facts []string) {
	for n, l := range s.Locks {
		f := nameOf(int8(n)) + " " + leaseText(l.Lease, l.Owner)
		if l.Marked {
			f += ", marked"
		}
		facts = append(facts, f)
	}
	for c, client := range s.Clients {
		if c >= len(m.Roles) {
			break
		}
		f := fmt.Sprintf("%c %s", 'A'+c, atNames[client.At])
		if client.Ticket != 0 && client.Sub.Phase != running && client.Sub.Phase != ranOut {
			f += fmt.Sprintf(", ticket %d", client.Ticket)
		}
		if client.Token != 0 {
			f += fmt.Sprintf(", token %d", client.Token)
		}
		if client.Hint != 0 {
			f += fmt.Sprintf(", a hint of token %d under way", client.Hint)
		}
		f += lifeNames[client.Life] + stageNames[client.Stage]
		if client.Renews {
			f += ", a renewal under way"
		}
		if client.Behind != 0 {
			f += ", behind transactions of"
			for d := range m.Roles {
				if client.Behind&(1<<d) != 0 {
					f += fmt.Sprintf(" %c", 'A'+d)
				}
			}
		}
		if m.isTree(c) && client.At == waiting && client.Begun && client.Behind == 0 {
			f += ", behind no transaction"
		}
		facts = append(facts, f)
		if m.isTree(c) {
			facts = append(facts, fmt.Sprintf("subtree of %c %s", 'A'+c, leaseText(client.Sub, uint8(c+1))))
		}
	}
	return append(facts, fmt.Sprintf("fence %d", s.Fence))
}

var (
	atNames = [...]string{"idle", "with a token drawn", "with a ticket, not committed", "with a ticket, not committed",
		"waits", "holds", "in a fenced transaction", "in COMMIT"}
	lifeNames  = [...]string{"", ", stopped", ", stopped, session over", ", session over"}
	stageNames = [...]string{"", ", table locked", ", snapshot taken"}
)

func leaseText(l Lease, owner uint8) string {
	who := "its last holder"
	if owner != 0 {
		who = string(rune('A' + owner - 1))
	}
	switch l.Phase {
	case running:
		return fmt.Sprintf("held by %s, token %d", who, l.Token)
	case ranOut:
		return fmt.Sprintf("ran out for %s, token %d", who, l.Token)
	case over:
		return fmt.Sprintf("over, token %d", l.Token)
	default:
		return "free"
	}
}
