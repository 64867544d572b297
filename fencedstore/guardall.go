package fencedstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// maxFences is how many fences one transaction may pass at once.
const maxFences = 1000

// Fence is one of several fences to pass: a lease, and what it protects.
type Fence struct {
	Lease    *pglock.Lease
	Resource string // 1 to 512 bytes; defaults to Lease.Resource()
}

// WriteAll is Write under several fences at once: of several leases, or of several resources of one lease. The
// transaction passes all of them or none, and COMMIT checks every lease. The server takes the fences in the byte order
// of their resources, and at COMMIT the leases in the order of their names. So transactions may name them in any order
// and do not wait for each other in a circle; if you call Guard several times instead, you must keep an order yourself.
// WithResource is an ErrInvalid: each Fence has its own resource. Name 1 to 1,000, each once. All leases must be of one
// schema of one database.
//
// Without WithTimeLimit the transaction may take until the first lease ends. WithTimeLimit extends every lease. The
// error is that of Write for the fence that refused.
func (s *Store) WriteAll(
	ctx context.Context, fences []Fence, fn func(context.Context, pgx.Tx) error, opts ...FenceOption,
) error {
	if err := s.check(fn); err != nil {
		return err
	}
	c, o, err := openAll(fences, opts, true)
	if err != nil {
		return err
	}
	return write(ctx, pgxDatabase{s.pool, c.transactionOp}, o, inPgx(fn))
}

// GuardAll is Guard for several fences at once, as WriteAll is Write for several. End the transaction with SealAll,
// which takes the leases in the order of their names. ExplainAll explains later errors.
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

func checkCount(fences []Fence) error {
	if len(fences) == 0 || len(fences) > maxFences {
		return invalid("fences", fmt.Sprint(len(fences), " long"), fmt.Sprint("have 1 to ", maxFences, " elements"))
	}
	return nil
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
	return o.explainGuarded(err, func() error {
		if !strings.HasPrefix(protocol.State(err), "LK") {
			return err
		}
		f := o.blamed(err)
		return translate(err, f.Lease, f.Resource)
	})
}

func (f Fence) withDefault() Fence {
	if f.Resource == "" {
		f.Resource = f.Lease.Resource()
	}
	return f
}

// openAll is the opening of a transaction under several fences. It refuses what is wrong in any database.
func openAll(fences []Fence, opts []FenceOption, transaction bool) (c config, o opening, err error) {
	if err := checkCount(fences); err != nil {
		return c, o, err
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
			return c, o, failure.Told(err, "fencedstore: fences[%d]", i)
		}
		if one.resource != f.Lease.Resource() {
			return c, o, invalid("WithResource", one.resource,
				"not be given with several fences: each Fence has its Resource")
		}
		f = f.withDefault()
		err = checkText("resource", f.Resource, pglock.MaxNameBytes)
		if err != nil && f.Resource != f.Lease.Resource() {
			return c, o, failure.Told(err, "fencedstore: fences[%d]", i)
		}
		first := hooks.Of(fences[0].Lease).Home()
		home := hooks.Of(f.Lease).Home()
		switch {
		case seen[f.Resource]:
			return c, o, invalid(fmt.Sprintf("fences[%d].Resource", i), f.Resource, "be named once")
		case home != first:
			err := fmt.Errorf("%w: lock %q is of schema %q, and lock %q of schema %q: a transaction is of one database",
				pglock.ErrWrongDatabase, f.Lease.Name(), home.Schema, fences[0].Lease.Name(), first.Schema)
			return c, o, failure.Told(err, "fencedstore: fences[%d]", i)
		}
		seen[f.Resource] = true
		one.resource = f.Resource
		c = one
		o.fences = append(o.fences, f)
		names, tokens = append(names, f.Lease.Name()), append(tokens, int64(f.Lease.Token()))
		grantIDs = append(grantIDs, hooks.Of(f.Lease).Export().ID.String())
		resources, slots = append(resources, one.named(f.Lease)), append(slots, f.Lease.Slot())
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
	o.args = append(o.args, c.sameToken, hooks.Of(fences[0].Lease).Home().DatabaseID.String(),
		string(inSlots))
	o.limit, o.read = c.limit, readLeft
	return c, o, nil
}
