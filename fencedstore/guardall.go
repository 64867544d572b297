package fencedstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// maxFences is how many fences one transaction may pass at once.
const maxFences = 1000

// Fence names a fence to pass, among several: a lease, and what it protects.
type Fence struct {
	Lease    *pglock.Lease
	Resource string // 1 to 512 bytes; defaults to Lease.Resource()
}

// WriteAll is Write under several fences at once: of several leases, or several resources of one. All of them are passed or
// none, and COMMIT checks every lease. The server takes the fences in the byte order of their resources, and at COMMIT the
// leases in the order of their names, so that transactions which name them in any order do not wait for each other in a
// circle; passing one fence after the other with Guard leaves the order to you. Of the options WithResource is refused:
// each Fence has its own. A resource may be named once, and all leases must be of one schema of one database.
//
// The time limits are those of the lease that ends first. Errors are those of Write, of the fence that
// was refused.
func (s *Store) WriteAll(ctx context.Context, fences []Fence, fn func(context.Context, pgx.Tx) error, opts ...FenceOption) error {
	if err := s.check(fn); err != nil {
		return err
	}
	c, o, err := openAll(fences, opts, true)
	if err != nil {
		return err
	}
	return write(ctx, pgxDatabase{s.pool, c.transactionOp}, o, inPgx(fn))
}

// GuardAll is Guard for several fences at once, as WriteAll is Write. SealAll is its last statement, which also takes the leases
// in the order of their names; ExplainAll explains the errors that come later.
func GuardAll(ctx context.Context, tx pgx.Tx, fences []Fence, opts ...FenceOption) error {
	if err := checkPgxTx(tx); err != nil {
		return err
	}
	c, o, err := openAll(fences, opts, false)
	if err != nil {
		return err
	}
	return c.guard(ctx, o, inPgxTx(ctx, tx))
}

// GuardAllSQL is GuardAll for a transaction of database/sql.
func GuardAllSQL(ctx context.Context, tx SQLTx, fences []Fence, opts ...FenceOption) error {
	if err := checkSQLTx(tx); err != nil {
		return err
	}
	c, o, err := openAll(fences, opts, false)
	if err != nil {
		return err
	}
	return c.guard(ctx, o, inSQLTx(ctx, tx))
}

// ExplainAll is Explain for a transaction of GuardAll.
func ExplainAll(err error, fences []Fence) error {
	if err == nil || len(fences) == 0 {
		return err
	}
	var o opening
	for _, f := range fences {
		if f.Lease == nil {
			return err
		}
		o.fences = append(o.fences, f.withDefault())
	}
	if p, known := lastPassage(fences[0].Lease); known {
		if late := p.explain(err, saysClosed(err)); late != nil {
			return late
		}
	}
	if !strings.HasPrefix(protocol.State(err), "LK") {
		return err
	}
	f := o.blamed(err)
	return translate(err, f.Lease, f.Resource)
}

func (f Fence) withDefault() Fence {
	if f.Resource == "" {
		f.Resource = f.Lease.Resource()
	}
	return f
}

// openAll refuses what can be known to be wrong without asking the server.
func openAll(fences []Fence, opts []FenceOption, transaction bool) (c config, o opening, err error) {
	if len(fences) == 0 || len(fences) > maxFences {
		return c, o, &pglock.ArgumentError{Field: "fences", Value: fmt.Sprint(len(fences), " long"), Rule: fmt.Sprint("have 1 to ", maxFences, " elements")}
	}
	var names, grantIDs []string
	var resources []*string
	var tokens []int64
	var slots []int
	seen := make(map[string]bool, len(fences))
	for i, f := range fences {
		one, err := newConfig(f.Lease, opts)
		if err == nil {
			err = one.refuse(transaction, false)
		}
		if err != nil {
			return c, o, fmt.Errorf("fences[%d]: %w", i, err)
		}
		if one.resource != f.Lease.Resource() {
			return c, o, &pglock.ArgumentError{Field: "WithResource", Value: one.resource, Rule: "not be given with several fences: each Fence has its Resource"}
		}
		f = f.withDefault()
		if err := checkText("resource", f.Resource, pglock.MaxNameBytes); err != nil && f.Resource != f.Lease.Resource() {
			return c, o, fmt.Errorf("fences[%d]: %w", i, err)
		}
		first := hooks.Home(fences[0].Lease)
		home := hooks.Home(f.Lease)
		switch {
		case seen[f.Resource]:
			return c, o, &pglock.ArgumentError{Field: fmt.Sprintf("fences[%d].Resource", i), Value: f.Resource, Rule: "be named once"}
		case home != first:
			return c, o, fmt.Errorf("fences[%d]: %w: lock %q is of schema %q, lock %q of schema %q, and a transaction is of one database",
				i, pglock.ErrWrongDatabase, f.Lease.Name(), home.Schema, fences[0].Lease.Name(), first.Schema)
		}
		seen[f.Resource] = true
		one.resource = f.Resource
		c = one
		o.fences = append(o.fences, f)
		names, tokens = append(names, f.Lease.Name()), append(tokens, int64(f.Lease.Token()))
		grantIDs, resources, slots = append(grantIDs, hooks.Export(f.Lease).ID.String()), append(resources, one.named(f.Lease)), append(slots, f.Lease.Slot())
	}
	o.sql = protocol.FenceAll(o.schema())
	for _, list := range []any{names, tokens, grantIDs, resources} { // as text, which every driver can send
		text, err := json.Marshal(list)
		if err != nil {
			return c, o, err
		}
		o.args = append(o.args, string(text))
	}
	inSlots, err := json.Marshal(slots)
	if err != nil {
		return c, o, err
	}
	o.args = append(o.args, c.sameToken, hooks.Home(fences[0].Lease).DatabaseID.String(), string(inSlots))
	o.limit, o.read = c.limit, readLeft
	return c, o, nil
}
