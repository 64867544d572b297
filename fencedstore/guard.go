package fencedstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// FenceOption changes how a write is fenced. A bad value makes the call fail before anything is sent.
type FenceOption func(*config) error

type config struct {
	resource      string
	sameToken     bool
	of            time.Time     // WithRetention
	keep          time.Duration // WithRetention; 0: for ever
	transactionOp pgx.TxOptions
	inTransaction bool // WithTxOptions was given
}

// WithResource names what the fence protects, 1 to 512 bytes. Every writer of the resource must use the same name.
// Defaults to the lock's name, and for a slot of a shared or limited lock to the name, '#', and the slot (Lease.Resource).
func WithResource(name string) FenceOption {
	return func(c *config) error {
		c.resource = name
		return checkText("resource", name, pglock.MaxNameBytes)
	}
}

// WithSameToken lets one grant write to the resource any number of times. Without it a grant writes once, which makes a
// retried write harmless.
func WithSameToken() FenceOption {
	return func(c *config) error {
		c.sameToken = true
		return nil
	}
}

// newConfig refuses what can be known to be wrong without asking the server.
func newConfig(lease *pglock.Lease, opts []FenceOption) (config, error) {
	if lease == nil || lease.Token() == 0 {
		return config{}, &pglock.ArgumentError{Field: "lease", Value: "nil or zero", Rule: "be a *pglock.Lease that a Client was granted"}
	}
	c := config{resource: lease.Resource()}
	for _, o := range opts {
		if o == nil {
			return config{}, &pglock.ArgumentError{Field: "option", Value: "nil", Rule: "be an option of this package"}
		}
		if err := o(&c); err != nil {
			return config{}, err
		}
	}
	return c, lease.Err()
}

// refuse names an option that the call has no use for.
func (c config) refuse(transaction, key bool) error {
	switch {
	case c.inTransaction && !transaction:
		return &pglock.ArgumentError{Field: "WithTxOptions", Value: "given", Rule: "be left out: the transaction has begun already, or is none of the caller's"}
	case c.keep > 0 && !key:
		return &pglock.ArgumentError{Field: "WithRetention", Value: "given", Rule: "be given to Once only"}
	}
	return nil
}

// Guard puts the application's own transaction under the fence of the lease's resource. Call it before the first read
// that the write depends on. The server checks the token and the lease now, and the lease again inside the COMMIT, which
// fails with SQLSTATE LK001 or LK003 (Explain makes it an ErrLost) when the lease has ended. After an error the
// transaction is aborted: roll it back.
//
// The transaction should last no longer than the lease has left now: the server ends one that hangs for so long, and from
// PostgreSQL 17 on any. SET CONSTRAINTS ALL IMMEDIATE
// after Guard uses up the check inside COMMIT, and ROLLBACK TO a savepoint from before Guard takes the fence back: where
// the transaction's code may do such things, end it with Seal. Store.Write does so by itself.
//
// Errors: ErrStaleToken (StaleTokenError), pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase, ErrPermission.
func Guard(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, opts ...FenceOption) error {
	if tx == nil {
		return &pglock.ArgumentError{Field: "tx", Value: "nil", Rule: "be a pgx.Tx"}
	}
	c, err := newConfig(lease, opts)
	if err == nil {
		err = c.refuse(false, false)
	}
	if err != nil {
		return err
	}
	o := c.openOne(lease)
	if err := o.read(tx.QueryRow(ctx, o.sql, o.guardArgs()...)); err != nil {
		return fmt.Errorf("fencedstore: guard resource %q: %w", c.resource, translate(err, lease, c.resource))
	}
	return nil
}

// GuardSQL is Guard for a transaction of database/sql, with any driver whose errors have a method SQLState.
func GuardSQL(ctx context.Context, tx *sql.Tx, lease *pglock.Lease, opts ...FenceOption) error {
	if tx == nil {
		return &pglock.ArgumentError{Field: "tx", Value: "nil", Rule: "be a *sql.Tx"}
	}
	c, err := newConfig(lease, opts)
	if err == nil {
		err = c.refuse(false, false)
	}
	if err != nil {
		return err
	}
	o := c.openOne(lease)
	if err := o.read(tx.QueryRowContext(ctx, o.sql, o.guardArgs()...)); err != nil {
		return fmt.Errorf("fencedstore: guard resource %q: %w", c.resource, translate(err, lease, c.resource))
	}
	return nil
}

// Seal is the last statement of a guarded transaction whose own code may have moved its constraints or rolled back to a
// savepoint: it refuses a transaction that is not under the fence any more (ErrLeftFence), checks the lease, and holds the lock
// until the COMMIT, also where SET CONSTRAINTS ALL IMMEDIATE has used up the check inside it. Of the options only WithResource
// matters. Store.Write does it by itself.
func Seal(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, opts ...FenceOption) error {
	return sealTx(tx == nil, []Fence{{Lease: lease}}, opts, func(sql string, resources []string) error {
		_, err := tx.Exec(ctx, sql, resources)
		return err
	})
}

// SealSQL is Seal for a transaction of database/sql.
func SealSQL(ctx context.Context, tx *sql.Tx, lease *pglock.Lease, opts ...FenceOption) error {
	return sealTx(tx == nil, []Fence{{Lease: lease}}, opts, func(sql string, resources []string) error {
		_, err := tx.ExecContext(ctx, sql, arrayText(resources))
		return err
	})
}

// SealAll is Seal for a transaction of GuardAll.
func SealAll(ctx context.Context, tx pgx.Tx, fences []Fence) error {
	return sealTx(tx == nil, fences, nil, func(sql string, resources []string) error {
		_, err := tx.Exec(ctx, sql, resources)
		return err
	})
}

// SealAllSQL is SealAll for a transaction of database/sql.
func SealAllSQL(ctx context.Context, tx *sql.Tx, fences []Fence) error {
	return sealTx(tx == nil, fences, nil, func(sql string, resources []string) error {
		_, err := tx.ExecContext(ctx, sql, arrayText(resources))
		return err
	})
}

func sealTx(isNil bool, fences []Fence, opts []FenceOption, exec func(sql string, resources []string) error) error {
	if isNil {
		return &pglock.ArgumentError{Field: "tx", Value: "nil", Rule: "be a transaction"}
	}
	if len(fences) == 0 || len(fences) > maxFences {
		return &pglock.ArgumentError{Field: "fences", Value: fmt.Sprint(len(fences), " long"), Rule: fmt.Sprint("have 1 to ", maxFences, " elements")}
	}
	var o opening
	for _, f := range fences {
		c, err := newConfig(f.Lease, opts)
		if err != nil {
			return err
		}
		if f.Resource == "" {
			f.Resource = c.resource
		}
		o.fences = append(o.fences, f)
	}
	if err := exec(protocol.Seal(o.schema()), o.resources()); err != nil {
		f := o.blamed(err)
		return fmt.Errorf("fencedstore: seal: %w", translate(err, f.Lease, f.Resource))
	}
	return nil
}

// arrayText is an array of texts as PostgreSQL reads it, for drivers that take no arrays.
func arrayText(texts []string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = `"` + quote.Replace(text) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// Explain turns the error of a guarded transaction's own COMMIT or statements into the errors of this package and of
// pglock; others come back as they are. Of the options only WithResource matters.
func Explain(err error, lease *pglock.Lease, opts ...FenceOption) error {
	if err == nil || lease == nil {
		return err
	}
	c, configErr := newConfig(lease, opts)
	if configErr != nil && c.resource == "" {
		c.resource = lease.Resource()
	}
	return translate(err, lease, c.resource)
}
