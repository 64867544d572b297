package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/migrations"
)

// postgresSettings flush to disk as a real server does, and keep checkpoints out of a run, because a checkpoint would
// burden the peer that is being measured.
var postgresSettings = map[string]string{
	"fsync":              "on",
	"checkpoint_timeout": "1h",
	"max_wal_size":       "8GB",
	"max_connections":    "300",
	"autovacuum_naptime": "5s",
}

// startPostgres starts a server with a migrated database that has the tables of the bare statements too.
func startPostgres(ctx context.Context, o Options) (*Running, error) {
	if err := pgserver.UnsetPG(); err != nil {
		return nil, err
	}
	settings := maps.Clone(postgresSettings)
	if o.Connections > 0 {
		settings["max_connections"] = strconv.Itoa(o.Connections)
	}
	programs, kind, err := pgserver.LocatePrograms(ctx, pgserver.KindPrograms, os.Stderr)
	if err != nil {
		return nil, err
	}
	s, err := pgserver.Start(ctx, pgserver.Options{Programs: programs, Kind: kind, Settings: settings})
	if err != nil {
		return nil, err
	}
	version, _, _ := strings.Cut(s.Description(), " from ") // its folder is nobody's business
	r := &Running{Address: s.URL(), PID: s.PID(), Version: version, stop: s.Stop}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		r.Settings += " " + key + "=" + settings[key]
	}
	r.Settings = strings.TrimSpace(r.Settings)
	if err := prepare(ctx, r); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return r, nil
}

func prepare(ctx context.Context, r *Running) error {
	at, err := url.Parse(r.Address)
	if err != nil {
		return err
	}
	if r.Port, err = strconv.Atoi(at.Port()); err != nil {
		return err
	}
	if err := migrations.Up(ctx, r.Address); err != nil {
		return err
	}
	for _, schema := range []string{peer.HistorySchema, peer.WithoutHistorySchema} {
		if err := migrations.Up(ctx, r.Address, migrations.WithSchema(schema)); err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, r.Address)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the end
	if _, err := conn.Exec(ctx, peer.BareSchema()); err != nil {
		return fmt.Errorf("make the bare tables: %w", err)
	}
	_, err = conn.Exec(ctx, "SELECT "+peer.HistorySchema+".set_history('bench', 'all'); DROP TRIGGER note_tenure ON "+
		peer.WithoutHistorySchema+".locks")
	if err != nil {
		return fmt.Errorf("set the history: %w", err)
	}
	return nil
}
