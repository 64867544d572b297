package argument

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Parsed reports whether pgx would take the configuration; it panics on any that ParseConfig has not made.
func Parsed(config *pgx.ConnConfig) (ok bool) {
	defer func() { ok = recover() == nil }()
	ctx, cancel := context.WithCancel(context.Background()) // ended before it is used
	cancel()
	if conn, err := pgx.ConnectConfig(ctx, config.Copy()); err == nil {
		_ = conn.Close(ctx)
	}
	return true
}
