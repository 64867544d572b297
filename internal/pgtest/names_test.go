package pgtest

import (
	"testing"
	"time"
)

func TestNamesTellTheirProcessAndItsStart(t *testing.T) {
	start := time.Unix(1700000000, 0)
	a, b := newNames(start), newNames(start)
	for _, name := range []string{a.template(), a.next(), a.next(), a.prefix} {
		prefix, made, ok := parseName(name)
		if !ok || prefix != a.prefix || !made.Equal(start) {
			t.Errorf("%s: process %s, %v, %v", name, prefix, made, ok)
		}
		if len(name) > 63 {
			t.Errorf("%s is too long for a name", name)
		}
	}
	if first, second := a.next(), a.next(); first == second || a.prefix == b.prefix {
		t.Error("names repeat")
	}
	for _, name := range []string{"postgres", "pglock_test_", "pglock_test_x_00", "pglock_test_1700000000"} {
		if _, _, ok := parseName(name); ok {
			t.Errorf("%s is taken for one of ours", name)
		}
	}
}

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
