package fencedstore

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// opening is the statement that puts a transaction under its fences. Its last two parameters are a receipt's.
type opening struct {
	fences []Fence // one or more, of one schema of one database
	sql    string
	args   []any // but for those two
	read   func(pgx.Row) error
}

// guardArgs are the arguments where no receipt is wanted: the COMMIT is somebody else's.
func (o opening) guardArgs() []any { return append(slices.Clone(o.args), nil, nil) }

func (o opening) resources() (names []string) {
	for _, f := range o.fences {
		names = append(names, f.Resource)
	}
	return names
}

func (o opening) schema() string { return hooks.Home(o.fences[0].Lease).Schema }

// String names the resources, for messages.
func (o opening) String() string {
	var names []string
	for _, f := range o.fences {
		names = append(names, strconv.Quote(f.Resource))
	}
	if len(names) == 1 {
		return "resource " + names[0]
	}
	return "resources " + strings.Join(names, ", ")
}

// lost is why one of the leases has ended, by the local clock, or nil.
func (o opening) lost() error {
	for _, f := range o.fences {
		if err := f.Lease.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (o opening) longestTTL() (longest time.Duration) {
	for _, f := range o.fences {
		longest = max(longest, f.Lease.TTL())
	}
	return longest
}

// blamed is the fence that the server's refusal is about: it names the token, and the lock or the resource.
func (o opening) blamed(err error) Fence {
	for _, f := range o.fences {
		if name := protocol.Field(err, protocol.FieldConstraint); protocol.Field(err, protocol.FieldColumn) == strconv.FormatInt(int64(f.Lease.Token()), 10) && (name == f.Resource || name == f.Lease.Name()) {
			if protocol.State(err) != protocol.StateStaleToken || name == f.Resource {
				return f
			}
		}
	}
	return o.fences[0]
}

// openOne is one call of the function that takes the fence row, compares the token, and checks the lease.
func (c config) openOne(lease *pglock.Lease) opening {
	grant := hooks.Export(lease)
	return opening{
		fences: []Fence{{Lease: lease, Resource: c.resource}},
		sql:    protocol.Fence(grant.Schema),
		args:   []any{lease.Name(), int64(lease.Token()), grant.ID.String(), c.named(lease), c.sameToken, grant.DatabaseID.String(), lease.Slot()},
		read:   readLeft,
	}
}

// named is the resource for the server, NULL for the one that it knows by itself.
func (c config) named(lease *pglock.Lease) *string {
	if c.resource == lease.Resource() {
		return nil
	}
	return &c.resource
}

func readLeft(row pgx.Row) error {
	var us int64
	return row.Scan(&us)
}
