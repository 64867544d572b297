package pgtest

import "testing"

func TestDatabaseIsReplacedInConnectionStringsOfEitherForm(t *testing.T) {
	for given, want := range map[string]string{
		"postgres://u:p@h:1/postgres?sslmode=disable": "postgres://u:p@h:1/x?sslmode=disable",
		"postgresql://u@h":                            "postgresql://u@h/x",
		"postgres://u@h/a?dbname=b&sslmode=disable":   "postgres://u@h/x?sslmode=disable",
		"host=h dbname=a":                             "host=h dbname=a dbname=x",
	} {
		if got := withDatabase(given, "x"); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
}
