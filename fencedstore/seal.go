package fencedstore

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// Seal protects a guarded transaction whose code may have used SET CONSTRAINTS or ROLLBACK TO. Call it as the last
// statement. It refuses a transaction that is no longer under the fence (ErrLeftFence), checks the lease, and holds the
// lock until COMMIT, even if SET CONSTRAINTS ALL IMMEDIATE has used up the check inside COMMIT. Of the options only
// WithResource matters. Store.Write and WriteSQL do this by themselves.
func Seal(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, opts ...FenceOption) error {
	return sealTx(ctx, checkPgxTx(tx), []Fence{{Lease: lease}}, opts, func(sql string, resources []string) error {
		_, err := tx.Exec(ctx, sql, resources)
		return err
	})
}

// SealSQL is Seal for a transaction of database/sql.
func SealSQL(ctx context.Context, tx SQLTx, lease *pglock.Lease, opts ...FenceOption) error {
	return sealTx(ctx, checkSQLTx(tx), []Fence{{Lease: lease}}, opts, func(sql string, resources []string) error {
		_, err := tx.ExecContext(ctx, sql, arrayText(resources))
		return err
	})
}

// SealAll is Seal for a transaction of GuardAll.
func SealAll(ctx context.Context, tx pgx.Tx, fences []Fence) error {
	return sealTx(ctx, checkPgxTx(tx), fences, nil, func(sql string, resources []string) error {
		_, err := tx.Exec(ctx, sql, resources)
		return err
	})
}

// SealAllSQL is SealAll for a transaction of database/sql.
func SealAllSQL(ctx context.Context, tx SQLTx, fences []Fence) error {
	return sealTx(ctx, checkSQLTx(tx), fences, nil, func(sql string, resources []string) error {
		_, err := tx.ExecContext(ctx, sql, arrayText(resources))
		return err
	})
}

func sealTx(
	ctx context.Context, bad error, fences []Fence, opts []FenceOption, exec func(sql string, resources []string) error,
) error {
	if bad != nil {
		return bad
	}
	if err := checkCount(fences); err != nil {
		return err
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
	err := o.lost()
	if err == nil {
		err = exec(protocol.Seal(o.schema()), o.resources())
	}
	if err != nil {
		f := o.blamed(err)
		err = translate(err, f.Lease, f.Resource)
	}
	return failure.At(ctx, o.observeRefusal(ctx, err), "fencedstore: seal %s", o)
}

// arrayText writes an array of texts as PostgreSQL reads it, for drivers that take no arrays.
func arrayText(texts []string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = `"` + quote.Replace(text) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
