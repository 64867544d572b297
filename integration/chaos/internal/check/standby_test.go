//go:build unix

package check

import (
	"testing"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// A server that has become a standby refuses, and says something else to a bare statement of a serializable session.
func TestRefusalOfAStandbyIsFoundWhereNoLeaderWasLost(t *testing.T) {
	s := tell(t)
	s.faults.Was(history.Fault{Name: "leader-switch", Worker: history.Everybody, Begin: ms(100), End: ms(200),
		Moves: true})
	says := func(at int, how, class string) {
		s.Event(history.Event{Kind: history.Wrote, How: how, At: ms(at), Answer: history.Refused, Class: class})
	}
	says(150, "Write", "read-only")
	says(150, history.Unfenced, "0A000")
	s.finds()
	says(150, "Write", "0A000")
	s.finds("errors")
	says(20_000, "Write", "read-only")
	s.finds("errors", "errors")
	says(20_000, history.Unfenced, "0A000")
	s.finds("errors", "errors", "errors")
}
