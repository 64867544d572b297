package pglock

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
)

// Grant is what the SQL functions of pglock ask for to believe that a lease is their caller's own. Whoever has it can renew and
// release the lease: give it to other processes on purpose only. Text and logs show it without its ID; JSON has all of it.
type Grant struct {
	Lock       string    `json:"lock"`
	Token      Token     `json:"token"`
	ID         uuid.UUID `json:"id"`       // the secret
	Slot       int       `json:"slot"`     // 0 for an exclusive lease
	Resource   string    `json:"resource"` // what its fence protects unless another is named
	Schema     string    `json:"schema"`   // of the functions
	DatabaseID uuid.UUID `json:"database_id"`
}

// String shows the grant without its ID.
func (g Grant) String() string {
	return fmt.Sprintf("grant of lock %q with token %d", g.Lock, g.Token)
}

// GoString is String, for %#v.
func (g Grant) GoString() string { return g.String() }

// LogValue is String, for slog.
func (g Grant) LogValue() slog.Value { return slog.StringValue(g.String()) }

// Export gives the grant to code that fences, renews or releases by the SQL functions, in a transaction of its own or in another
// process. From then on the release of this lease goes through the server, also where it would have passed the lock on in memory
// (WithTurns). Package fencedstore needs no Export.
//
// Errors: ErrReleased or ErrLost, when the lease has ended and its grant may be another call's by now.
func (l *Lease) Export() (Grant, error) {
	if !l.makeKnown() {
		return Grant{}, fmt.Errorf("export %s: %w", l, cmp.Or(l.howEnded(), ErrReleased))
	}
	return l.shown(), nil
}

func (l *Lease) shown() Grant {
	return Grant{Lock: l.name, Token: l.token, ID: l.grantID, Slot: l.slot, Resource: l.Resource(),
		Schema: l.client.config.schema, DatabaseID: l.client.databaseID}
}
