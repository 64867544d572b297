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

func wrongDatabase(s *Stage) {
	s.exec("SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'ci/deploy[12]', '1 h') " +
		"FROM unnest('{deploy,smoke-test}'::text[]) n")
	s.inApp()
}

func wrongDatabaseEmpty(s *Stage) {
	s.make("reporting")
	s.URL = named(s.URL, "reporting")
	s.inApp()
}

// inApp puts the lock, its holder and its queue into database app of the same server.
func (s *Stage) inApp() {
	s.make("app")
	s.url = named(s.url, "app")
	must(migrations.Up(s.making, s.url))
	s.admin = get(pgxpool.New(s.ctx, s.url)) // make closes the first
	_, _, lease := s.holder("app-1/reporter[4711]", report)
	s.queue(report, "app-2/reporter[963]")
	s.heldFor(lease, 7*time.Minute)
	// two of each program: one of its pool and its own
	s.until("all connections", `SELECT count(*) >= 4 FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'pglock %'`)
}

// make makes a database, until the stage is closed.
func (s *Stage) make(database string) {
	first, name := s.admin, pgx.Identifier{database}.Sanitize()
	s.atEnd(func() {
		_, _ = first.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		if first != s.admin {
			first.Close()
		}
	})
	s.exec("CREATE DATABASE " + name)
}

// named replaces the database in a URL.
func named(connString, database string) string {
	u := get(url.Parse(connString))
	u.Path = "/" + database
	return u.String()
}
