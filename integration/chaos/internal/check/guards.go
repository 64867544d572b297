//go:build unix

package check

import (
	"fmt"
	"slices"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// guards checks that no unfenced write is let through, but while somebody has tampered with a guard.
func (j *Judge) guards(e history.Event) {
	if e.Kind != history.Wrote || e.How != history.Unfenced || e.Answer != history.Done {
		return
	}
	if !j.tampered(e.From, e.At) {
		j.blame("guards", e.At, []string{e.Name}, fmt.Sprintf(
			"%s an UPDATE of %q was accepted from a transaction under no fence", sayWho(e.Who), e.Name), sayEvent(e))
	}
}

// tampered reports whether somebody had tampered with a guard in that time.
func (c *court) tampered(from, to history.Time) bool {
	return slices.ContainsFunc(c.faults.Between(from, to), func(f history.Fault) bool {
		return f.Name == history.Tampered
	})
}
