package cli

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
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
