//go:build unix

package troubles

import (
	"context"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/migrations"
)

func wrongDatabase(ctx context.Context, s *Stage) error {
	err := s.exec(ctx, "SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'ci/deploy[12]', '1 h') "+
		"FROM unnest('{deploy,smoke-test}'::text[]) n")
	if err != nil {
		return err
	}
	return s.inApp(ctx)
}

func wrongDatabaseEmpty(ctx context.Context, s *Stage) error {
	if err := s.make(ctx, "reporting"); err != nil {
		return err
	}
	at, err := named(s.URL, "reporting")
	if err != nil {
		return err
	}
	s.URL = at
	return s.inApp(ctx)
}

// inApp puts the lock, its holder and its queue into database app of the same server.
func (s *Stage) inApp(ctx context.Context) error {
	if err := s.make(ctx, "app"); err != nil {
		return err
	}
	at, err := named(s.url, "app")
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, at); err != nil {
		return err
	}
	pool, err := pgxpool.New(s.ctx, at)
	if err != nil {
		return err
	}
	s.url, s.admin = at, pool // make closes the first
	_, _, lease, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err == nil {
		err = s.queue(ctx, report, "app-2/reporter[963]")
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 7*time.Minute)
	}
	if err == nil { // two of each program: one of its pool and its own
		err = s.until(ctx, "all connections", `SELECT count(*) >= 4 FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'pglock %'`)
	}
	return err
}

// make makes a database, until the stage is closed.
func (s *Stage) make(ctx context.Context, database string) error {
	first, name := s.admin, pgx.Identifier{database}.Sanitize()
	s.atEnd(func() {
		_, _ = first.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		if first != s.admin {
			first.Close()
		}
	})
	return s.exec(ctx, "CREATE DATABASE "+name)
}

// named replaces the database in a URL.
func named(connString, database string) (string, error) {
	u, err := url.Parse(connString)
	if err != nil {
		return "", err
	}
	u.Path = "/" + database
	return u.String(), nil
}
