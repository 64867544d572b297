package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/lockadmin"
)

// usesDatabase marks a command that speaks to the database, which --database-url or the environment names.
var usesDatabase = map[string]string{"database": "used"}

// aim reads the connection string, before anything is done.
func (o *options) aim(cmd *cobra.Command) error {
	if cmd.Annotations["database"] == "" {
		return nil
	}
	config, err := pgxpool.ParseConfig(o.url())
	if err != nil {
		return usageErrorf(`--database-url "postgres://user@host:5432/database"`, "%s: %s", o.source(), fault(err))
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	argument.NameApplication(config.ConnConfig.RuntimeParams)
	o.config, o.at = config, targetOf(config.ConnConfig, o.schema)
	return nil
}

// url is the connection string; empty means the PG* variables.
func (o *options) url() string {
	if o.databaseURL != "" {
		return o.databaseURL
	}
	return o.getenv("DATABASE_URL")
}

// source is what gave the connection string.
func (o *options) source() string {
	switch {
	case o.databaseURL != "":
		return "--database-url"
	case o.getenv("DATABASE_URL") != "":
		return "DATABASE_URL"
	}
	return "the PG* variables"
}

// fault is what is wrong with a connection string, without the string: in one that cannot be read nobody knows for sure what
// is the password.
func fault(err error) string {
	s := err.Error()
	if i := strings.LastIndex(s, "`: "); i >= 0 {
		s = s[i+len("`: "):]
	}
	if strings.Contains(s, "@") { // it quotes a piece of it
		s, _, _ = strings.Cut(s, " (")
	}
	return "it cannot be read as a connection string: " + s
}

// timeUp is why a command is given up.
type timeUp struct{ limit string }

func (e timeUp) Error() string { return fmt.Sprintf("no answer within %s (--timeout)", e.limit) }

// bounded gives the time that the command may take.
func (o *options) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, o.timeout, timeUp{durationText(o.timeout)})
}

// because adds why ctx ended, where that is why err came.
func because(ctx context.Context, err error) error {
	var own *advised
	if err != nil && ctx.Err() != nil && context.Cause(ctx) != ctx.Err() && !errors.As(err, &own) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// withAdmin runs f with what looks at the locks. It refuses a schema that does not fit.
func (o *options) withAdmin(ctx context.Context, f func(context.Context, *lockadmin.Admin) error) error {
	return o.withPool(ctx, func(ctx context.Context, pool *pgxpool.Pool) error { return o.onPool(ctx, pool, f) })
}

// onPool is withAdmin over a pool that there is.
func (o *options) onPool(ctx context.Context, pool *pgxpool.Pool, f func(context.Context, *lockadmin.Admin) error) error {
	admin, err := lockadmin.New(ctx, pool, lockadmin.WithSchema(o.schema))
	if err != nil {
		return err
	}
	return f(ctx, admin)
}

// withPool runs f with a pool, within the time that the command may take.
func (o *options) withPool(ctx context.Context, f func(context.Context, *pgxpool.Pool) error) error {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, o.config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return because(ctx, o.withRights(ctx, pool, f(ctx, pool)))
}
