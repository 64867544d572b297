package fencedstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// opening is the statement that puts a transaction under its fences. Its last three parameters are a receipt's and the
// time limit.
type opening struct {
	config
	fences Fences // one or more, of one schema of one database
	sql    string
	args   []any // but for those three
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
		id, write = new(r.ID.String()), new(r.Write.String())
	}
	if o.limit > 0 {
		limit = new(protocol.Interval(o.limit))
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
func (o opening) home() hooks.Grant { return hooks.Of(o.fences).Home() }

// String names the resources, for messages.
func (o opening) String() string {
	names := o.resources()
	for i, name := range names {
		names[i] = strconv.Quote(name)
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

// blamed finds the fence that the server has refused: the error names the token, and the lock or the resource. It is
// unknown if the error names another lock's fence, as one that the callback has passed by itself, or if there are
// several and the driver has no such fields.
func (o opening) blamed(err error) (refused Fence, known bool) {
	name, token := protocol.Field(err, protocol.FieldConstraint), protocol.Field(err, protocol.FieldColumn)
	for _, f := range o.fences {
		isStale := protocol.State(err) == protocol.StateStaleToken
		if token == strconv.FormatInt(int64(f.Lease.Token()), 10) &&
			(name == f.Resource || name == f.Lease.Name() && !isStale) {
			return f, true
		}
	}
	return o.fences[0], name == "" && len(o.fences) == 1
}

// open is the opening of a transaction, for Guard or for a store. It refuses what is wrong in any database.
func (c config) open(fenced Fenced, guard bool) (o opening, err error) {
	if err := c.refuse(guard); err != nil {
		return o, err
	}
	o = opening{config: c, read: readLeft}
	if o.fences, err = listed(fenced); err != nil {
		return o, err
	}
	switch {
	case c.key != "":
		return o.openOnce()
	case len(o.fences) > 1:
		return o.openAll(), nil
	}
	f := o.fences[0]
	grant := hooks.Of(f).Export()
	o.sql = protocol.Fence(grant.Schema)
	o.args = []any{f.Lease.Name(), int64(f.Lease.Token()), grant.ID.String(), f.named(), f.SameToken,
		grant.DatabaseID.String(), f.Lease.Slot()}
	return o, nil
}

// openAll is the opening under several fences.
func (o opening) openAll() opening {
	var names, grantIDs []string
	var resources []*string
	var tokens []int64
	var slots []int
	for _, f := range o.fences {
		names, tokens = append(names, f.Lease.Name()), append(tokens, int64(f.Lease.Token()))
		grantIDs = append(grantIDs, hooks.Of(f).Export().ID.String())
		resources, slots = append(resources, f.named()), append(slots, f.Lease.Slot())
	}
	var texts []any
	for _, list := range []any{names, tokens, grantIDs, resources, slots} { // as text, which every driver can send
		text, _ := json.Marshal(list) // it has only texts and numbers
		texts = append(texts, string(text))
	}
	o.sql = protocol.FenceAll(o.schema())
	o.args = append(texts[:4:4], o.fences[0].SameToken, o.home().DatabaseID.String(), texts[4])
	return o
}

func readLeft(row pgx.Row) (p passed, err error) {
	var us int64
	err = row.Scan(&us, &p.pid)
	p.left = time.Duration(us) * time.Microsecond
	return p, err
}
