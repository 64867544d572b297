package model

import "fmt"

// A Label says which step it was, and whose.
type Label struct {
	Kind Kind
	Who  int8
}

// Kind is a kind of step. docs/model.md says for which function each stands.
type Kind uint8

const (
	Asks Kind = iota
	AsksUnheard
	LocksTable
	TakesSnapshot
	DrawsToken
	CommitsTicket
	GivesUp
	HearsHint
	Announces
	Renews
	RenewalCommits
	RenewalFails
	PassesFence
	ChecksLease
	Commits
	RollsBack
	Releases
	HandsOver
	IsBroken
	RunsOut
	ClockSetBack
	Stops
	SessionEnds
	ComesBack
	Looks
	NumbersRequest
	WaitsForGrants
	kinds
)

var kindNames = [kinds]string{
	Asks:           "asks",
	AsksUnheard:    "asks, and the answer is lost",
	LocksTable:     "locks the table",
	TakesSnapshot:  "takes its snapshot",
	DrawsToken:     "draws a token",
	CommitsTicket:  "commits its ticket",
	GivesUp:        "gives up",
	HearsHint:      "hears a hint",
	Announces:      "grant is announced",
	Renews:         "renews",
	RenewalCommits: "renewal commits",
	RenewalFails:   "renewal fails",
	PassesFence:    "passes the fence",
	ChecksLease:    "checks the lease inside COMMIT",
	Commits:        "commits",
	RollsBack:      "rolls back",
	Releases:       "releases",
	HandsOver:      "hands over",
	IsBroken:       "lease is broken",
	RunsOut:        "lease runs out",
	ClockSetBack:   "clock is set back",
	Stops:          "stops",
	SessionEnds:    "session ends",
	ComesBack:      "comes back",
	Looks:          "looks",
	NumbersRequest: "draws the subtree's ticket",
	WaitsForGrants: "begins to wait for grants under way",
}

func (k Kind) String() string { return kindNames[k] }

func (l Label) String() string {
	switch l.Kind {
	case Announces:
		return fmt.Sprintf("%s: the %s", nameOf(l.Who), l.Kind)
	case IsBroken, RunsOut, ClockSetBack:
		return fmt.Sprintf("%s: the %s", leaseOf(l.Who), l.Kind)
	default:
		return fmt.Sprintf("%c %s", 'A'+l.Who, l.Kind)
	}
}

func nameOf(n int8) string { return string(rune('x' + n)) }

// leaseOf names the lease of a name, or of a subtree by its client, whose number begins at names.
func leaseOf(n int8) string {
	if n < names {
		return nameOf(n)
	}
	return fmt.Sprintf("subtree of %c", 'A'+n-names)
}
