package pglock

import (
	"fmt"
	"log/slog"

	"github.com/google/uuid"
)

// Grant proves to the SQL functions of pglock that a lease is the caller's own. Whoever has it can renew and
// release the lease, so give it to other processes only on purpose. Text and logs omit its ID; JSON has all of
// it.
type Grant struct {
	Lock       string    `json:"lock"`
	Token      Token     `json:"token"`
	ID         uuid.UUID `json:"id"`       // the secret
	Slot       int       `json:"slot"`     // 0 for an exclusive lease
	Resource   string    `json:"resource"` // what its fence protects by default
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

// Export returns the grant for code that fences, renews or releases through the SQL functions, in its own
// transaction or in another process. Package fencedstore needs no Export. It asks nobody: the grant of a lease that
// has ended is refused by the server. Extend the lease with Extend, not through SQL: the client's next renewal ends an
// extension that it does not know.
func (l *Lease) Export() Grant {
	return Grant{Lock: l.name, Token: l.token, ID: l.grantID, Slot: l.slot, Resource: l.Resource(),
		Schema: l.client.config.schema, DatabaseID: l.client.databaseID}
}
