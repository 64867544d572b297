package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// UsesDatabase marks a command that connects to the database.
var UsesDatabase = map[string]string{"database": "used"}

// ForOperators marks a command that needs the role pglock_admin, too.
var ForOperators = map[string]string{"database": "used", "role": OperatorRole}

// Aim reads the connection string, before the command does anything.
func (o *Options) Aim(cmd *cobra.Command) error {
	if cmd.Annotations["database"] == "" {
		return nil
	}
	o.Role = cmd.Annotations["role"]
	o.again = again(cmd)
	config, err := pgxpool.ParseConfig(o.url())
	if err != nil {
		return UsageErrorf(`--database-url "postgres://user@host:5432/database"`, "%s: %s", o.source(), fault(err))
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	argument.NameApplication(config.ConnConfig.RuntimeParams)
	o.Config, o.At = config, targetOf(config.ConnConfig, o.Schema)
	return nil
}

// url is the connection string; empty means the PG* variables.
func (o *Options) url() string { return cmp.Or(o.DatabaseURL, o.Getenv("DATABASE_URL")) }

func (o *Options) source() string {
	switch {
	case o.DatabaseURL != "":
		return "--database-url"
	case o.Getenv("DATABASE_URL") != "":
		return "DATABASE_URL"
	}
	return "the PG* variables"
}

// fault tells what is wrong with a connection string without repeating it: if it cannot be read, nobody knows which
// part is the password.
func fault(err error) string {
	s := err.Error()
	if i := strings.LastIndex(s, "`: "); i >= 0 {
		s = s[i+len("`: "):]
	}
	if strings.Contains(s, "@") { // the message quotes a part of the string
		s, _, _ = strings.Cut(s, " (")
	}
	return "it cannot be read as a connection string: " + s
}

// timeUp is the reason when --timeout ends a command.
type timeUp struct{ limit string }

func (e timeUp) Error() string { return fmt.Sprintf("no answer within %s (--timeout)", e.limit) }

// Bounded ends the context after --timeout.
func (o *Options) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, o.Timeout, timeUp{shown.Duration(o.Timeout)})
}

// Because adds to err why ctx ended, if the end of ctx caused err.
func Because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && context.Cause(ctx) != ctx.Err() && !Is[*Advised](err) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// Looking runs f with a lockadmin.Admin, for a command that only reads: it also answers on a standby, and the answer
// says so. It refuses a schema of another version. The error about a missing schema says where pglock is in use
// instead, with the command that looks there: otherwise somebody who looks into the wrong database would hear that they
// should make the schema there.
func (o *Options) Looking(ctx context.Context, f func(context.Context, *lockadmin.Admin) error) error {
	return o.WithPool(ctx, func(ctx context.Context, pool *pgxpool.Pool) error {
		admin, err := lockadmin.New(ctx, pool, lockadmin.WithSchema(o.Schema))
		if err != nil {
			return o.perhapsElsewhere(ctx, pool, err)
		}
		if o.Standby, err = admin.Standby(ctx); err != nil {
			return err
		}
		return f(ctx, admin)
	})
}

// WithAdmin is Looking for a command that writes, or shows the present: it refuses a standby.
func (o *Options) WithAdmin(ctx context.Context, f func(context.Context, *lockadmin.Admin) error) error {
	return o.WithPool(ctx, func(ctx context.Context, pool *pgxpool.Pool) error {
		admin, err := o.OnPrimary(ctx, pool)
		if err != nil {
			return err
		}
		return f(ctx, admin)
	})
}

// OnPrimary makes a lockadmin.Admin, unless the server is a standby.
func (o *Options) OnPrimary(ctx context.Context, pool *pgxpool.Pool) (*lockadmin.Admin, error) {
	admin, err := lockadmin.New(ctx, pool, lockadmin.WithSchema(o.Schema))
	if err != nil {
		return nil, err
	}
	return admin, IsPrimary(ctx, admin)
}

// IsPrimary refuses a standby.
func IsPrimary(ctx context.Context, admin *lockadmin.Admin) error {
	standby, err := admin.Standby(ctx)
	if standby != nil {
		err = fmt.Errorf("%w: %w", errStandby, pglock.ErrReadOnly)
	}
	return err
}

var errStandby = errors.New("the server is a standby: this command needs the primary")

// WithPool runs f with a pool, for --timeout at most.
func (o *Options) WithPool(ctx context.Context, f func(context.Context, *pgxpool.Pool) error) error {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, o.Config)
	if err != nil {
		return err
	}
	defer CloseSoon(pool)
	o.Pool = pool
	return Because(ctx, o.WithRights(ctx, pool, f(ctx, pool)))
}

// CloseSoon closes the pool. It waits for a silent server no longer than a second: the connections end with this
// process.
func CloseSoon(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// Actor names whoever runs this program: user@host.
func Actor() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		host = h
	}
	who := strings.ToValidUTF8(name+"@"+host, "?")
	return strings.ToValidUTF8(who[:min(len(who), pglock.MaxHolderBytes)], "")
}
