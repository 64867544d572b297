package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/shown"
)

func TestPlacesOfEveryKind(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p@db.example.com:5433/app":                   "db.example.com:5433, database app",
		"postgres://u:p@db.example.com/app?sslmode=prefer":         "db.example.com:5432, database app",
		"postgres://u:p@db.example.com/app?sslmode=disable":        "db.example.com:5432, database app",
		"host=/run/postgresql dbname=app user=u":                   "/run/postgresql/.s.PGSQL.5432, database app",
		"host=/run/postgresql port=5433 dbname=app user=u":         "/run/postgresql/.s.PGSQL.5433, database app",
		"postgres://u:p@a:1,b:2/app":                               "a:1, b:2, database app",
		"postgres://u:p@[::1]:5432/app":                            "[::1]:5432, database app",
		"host=h user=me dbname='' password=p sslmode=disable":      "h:5432, database me",
		"host=h user=u dbname='my app' password=p sslmode=disable": `h:5432, database "my app"`,
	} {
		config := must.Get(pgx.ParseConfig(address))(t)
		if got := targetOf(config, DefaultSchema).Now().String(); got != want {
			t.Errorf("%s is %q, want %q", address, got, want)
		}
	}
}

func TestASuggestedCommandLeavesOutThePassword(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"postgres://u:secret@h/d":                                    "postgres://u@h/d",
		"postgresql://u@h/d?password=secret&sslmode=disable":         "postgresql://u@h/d?sslmode=disable",
		"postgres://u@h/d?sslpassword=secret":                        "postgres://u@h/d?",
		"host=h password=secret dbname=d":                            "host=h dbname=d",
		"host=h password = 'se\\'c ret' dbname=d sslpassword=secret": "host=h dbname=d",
		"host=h dbname=d PASSWORD=secret":                            "host=h dbname=d",
		"host=h password=se\\ cret user=u":                           "host=h user=u",
		"postgres://h/d":                                             "postgres://h/d",
		"postgres://u:a#%73ecret@h/d":                                "host='h' port=5432 user='u' dbname='d'",
		"postgres://u:#secret@h/d":                                   "host='h' port=5432 user='u' dbname='d'",
		"postgres://u:secret@h/d?application_name=secret":            "host='h' port=5432 user='u' dbname='d'",
		"user=u application_name='no password here' host=h port=5432": "user=u application_name='no password " +
			"here' host=h port=5432",
		"postgres://u:p%40secret@h:5432/d?application_name=a&x=password": "postgres://u@h:5432/d?" +
			"application_name=a&x=password",
	} {
		config, err := pgx.ParseConfig(given)
		if err != nil {
			t.Fatalf("%s: %v", given, err)
		}
		if got := WithoutPassword(given, config); got != want && got != strings.TrimSuffix(want, "?") ||
			strings.Contains(got, "ecret") {
			t.Errorf("%s becomes %s, want %s", given, got, want)
		}
	}
}

// Also a command whose connection string had to be written anew leads to every server, and to the one that is wanted.
func TestASuggestedCommandNamesEveryServer(t *testing.T) {
	t.Parallel()
	const plain = "host='db1,db2' port=5432,5433 user='app' dbname='app' target_session_attrs="
	for _, wanted := range []string{"read-write", "read-only", "primary", "standby", "prefer-standby"} {
		for _, given := range []string{ // psql refuses pool_, and nobody can tell the password from the rest
			"postgres://app:secret@db1,db2:5433/app?target_session_attrs=" + wanted +
				"&pool_ping_timeout=2s&application_name=secret",
			"host=db1,db2 port=5432,5433 user=app password=secret dbname=app application_name=secret " +
				"pool_ping_timeout=2s target_session_attrs = '" + wanted + "'",
		} {
			config := must.Get(pgxpool.ParseConfig(given))(t)
			o := &Options{DatabaseURL: given, Schema: DefaultSchema, Config: config,
				Getenv: func(string) string { return "" }}
			if got, want := o.Psql(), "psql "+shown.Argument(plain+wanted); got != want {
				t.Errorf("%s: %s, want %s", given, got, want)
			}
			if got, want := o.Same(), " --database-url "+shown.Argument(plain+wanted); got != want {
				t.Errorf("%s: %s, want %s", given, got, want)
			}
			got, want := o.Elsewhere("list", "b"), shown.Argument(strings.Replace(plain, "dbname='app'", "dbname='b'",
				1)+wanted)
			if got != "list --database-url "+want {
				t.Errorf("%s: %s, want %s", given, got, want)
			}
		}
		there := must.Get(pgx.ParseConfig(plain + wanted))(t)
		if servers := server.Addresses(there); !slices.Equal(servers, []string{"db1:5432", "db2:5433"}) ||
			sessionAttrs(there) != wanted {
			t.Errorf("%s leads to %v, %s", plain+wanted, servers, sessionAttrs(there))
		}
	}
}
