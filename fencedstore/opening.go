package fencedstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// opening is the statement that puts a transaction under its fences. Its last three parameters are a receipt's and the
// time limit.
type opening struct {
	fences []Fence // one or more, of one schema of one database
	sql    string
	args   []any         // but for those three
	limit  time.Duration // how long the transaction may take; 0: as long as the lease has left

	// read reads the answer.
	read func(pgx.Row) (passed, error)
}

// passed is the server's answer to an opening.
type passed struct {
	left time.Duration // what the lease has left
	pid  int           // of the server process that has the transaction
}

// arguments are all arguments. Without a receipt somebody else sends the COMMIT and does not ask what became of it.
func (o opening) arguments(r *Receipt) []any {
	var id, write, limit *string
	if r != nil {
		texts := [2]string{r.ID.String(), r.Write.String()}
		id, write = &texts[0], &texts[1]
	}
	if o.limit > 0 {
		text := protocol.Interval(o.limit)
		limit = &text
	}
	return append(slices.Clone(o.args), id, write, limit)
}

func (o opening) resources() (names []string) {
	for _, f := range o.fences {
		names = append(names, f.Resource)
	}
	return names
}

func (o opening) schema() string { return o.home().Schema }

// home is the database and the schema, and no grant.
func (o opening) home() hooks.Grant { return hooks.Of(o.fences[0].Lease).Home() }

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

// lost says why one of the leases has ended, by the local clock, and which one if there are several. It is nil while
// none has.
func (o opening) lost() error {
	for i, f := range o.fences {
		if err := f.Lease.Err(); err != nil && len(o.fences) > 1 {
			return fmt.Errorf("fences[%d]: %w", i, err)
		} else if err != nil {
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

// longest is for how long the server may let a transaction go on that passes the fences now: without a time limit for
// as long as a lease lasts there, which is longer by its grace.
func (o opening) longest() time.Duration {
	longest := o.limit
	for _, f := range o.fences {
		if o.limit == 0 {
			longest = max(longest, max(f.Lease.TTL(), time.Until(f.Lease.Deadline()))+
				hooks.Of(f.Lease).Export().Grace)
		}
	}
	return longest
}

// blamed finds the fence that the server has refused: the error names the token, and the lock or the resource.
func (o opening) blamed(err error) Fence {
	for _, f := range o.fences {
		name, token := protocol.Field(err, protocol.FieldConstraint), protocol.Field(err, protocol.FieldColumn)
		isStale := protocol.State(err) == protocol.StateStaleToken
		if token == strconv.FormatInt(int64(f.Lease.Token()), 10) &&
			(name == f.Resource || name == f.Lease.Name() && !isStale) {
			return f
		}
	}
	return o.fences[0]
}

// openWrite is the opening of a write under one fence.
func openWrite(lease *pglock.Lease, opts []FenceOption) (config, opening, error) {
	c, err := newConfig(lease, opts)
	if err == nil {
		err = c.refuse(true, false)
	}
	if err != nil {
		return c, opening{}, err
	}
	return c, c.openOne(lease), nil
}

// openOne is one call of the function that takes the fence row, compares the token, and checks the lease.
func (c config) openOne(lease *pglock.Lease) opening {
	grant := hooks.Of(lease).Export()
	return opening{
		fences: []Fence{{Lease: lease, Resource: c.resource}},
		sql:    protocol.Fence(grant.Schema),
		args: []any{lease.Name(), int64(lease.Token()), grant.ID.String(), c.named(lease), c.sameToken,
			grant.DatabaseID.String(), lease.Slot()},
		limit: c.limit,
		read:  readLeft,
	}
}

// named is the resource as the server needs it: NULL if the server knows it by itself.
func (c config) named(lease *pglock.Lease) *string {
	if c.resource == lease.Resource() {
		return nil
	}
	return &c.resource
}

func readLeft(row pgx.Row) (p passed, err error) {
	var us int64
	err = row.Scan(&us, &p.pid)
	p.left = time.Duration(us) * time.Microsecond
	return p, err
}
