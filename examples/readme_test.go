package examples_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/internal/standby"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// blocksOf gives the README's code blocks in a language, in their order.
func blocksOf(t *testing.T, language string) (blocks []string) {
	t.Helper()
	text := must.Get(os.ReadFile("../README.md"))(t)
	rest := string(text)
	for {
		_, below, found := strings.Cut(rest, "\n```"+language+"\n")
		if !found {
			return blocks
		}
		block, after, found := strings.Cut(below, "```\n")
		if !found {
			t.Fatalf("a block in %s has no end", language)
		}
		blocks, rest = append(blocks, block), after
	}
}

// wantBlock fails unless a block of the README is code.
func wantBlock(t *testing.T, number int, code string) {
	t.Helper()
	blocks := blocksOf(t, "go")
	if len(blocks) <= number {
		t.Fatalf("the README has %d blocks of Go, want more than %d", len(blocks), number)
	}
	if blocks[number] != code {
		t.Errorf("the README has\n%s\nand the code that is tested is\n%s", blocks[number], code)
	}
}

func TestTheReadmeHasThisProgram(t *testing.T) {
	t.Parallel()
	program := must.Get(os.ReadFile("first/main.go"))(t)
	wantBlock(t, 0, string(program))
}

func TestTheReadmeHasThisNightlyJob(t *testing.T) {
	t.Parallel()
	source := must.Get(os.ReadFile("nightly_test.go"))(t)
	_, code, _ := strings.Cut(string(source), "\n// In the README from here on.\n")
	wantBlock(t, 1, code)
}

func TestEightReplicasDoTheNightlyJobOnce(t *testing.T) {
	t.Parallel()
	const replicas = 8
	db := pgtest.Database(t)
	execute(t, db.Pool(t), "CREATE TABLE reports (night text, total bigint)")
	ends := make(chan error, replicas)
	for range replicas {
		pool := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
		client := must.Get(pglock.New(t.Context(), pool))(t)
		t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
		go func() { ends <- nightly(t.Context(), client, pool, due) }() // received below
	}
	for range replicas {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	var done int
	if err := db.Conn(t).QueryRow(t.Context(), "SELECT count(*) FROM reports").Scan(&done); err != nil || done != 1 {
		t.Errorf("the job was done %d times, %v; want once", done, err)
	}
}

// Where summer time begins, two nights may have one date in UTC.
func TestTheNightlyJobIsDoneOnEachNightOfALocalSchedule(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	pool := db.Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	execute(t, pool, "CREATE TABLE reports (night text, total bigint)")
	for _, due := range []time.Time{
		time.Date(2026, 3, 29, 1, 0, 0, 0, time.FixedZone("CET", 3600)),
		time.Date(2026, 3, 30, 1, 0, 0, 0, time.FixedZone("CEST", 7200)),
	} {
		must.Do(t, nightly(t.Context(), client, pool, due))
	}
	if done := pgtest.One[int](t, db.Conn(t), "SELECT count(*) FROM reports"); done != 2 {
		t.Errorf("%d of two nights were done", done)
	}
}

// A job that fails has not been done: the next replica does it.
func TestANightlyJobThatFailedIsDoneByTheNextReplica(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	pool := db.Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	if err := nightly(t.Context(), client, pool, due); err == nil {
		t.Error("a report was written into a table that does not exist")
	}
	execute(t, pool, "CREATE TABLE reports (night text, total bigint)")
	if err := nightly(t.Context(), client, pool, due); err != nil {
		t.Error(err)
	}
	var done int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM reports").Scan(&done); err != nil || done != 1 {
		t.Errorf("the job was done %d times, %v; want once", done, err)
	}
}

// A report that can be seen may be one that a failover loses: its COMMIT may not have waited for the standby.
func TestANightlyJobIsDoneWhenTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	pool := must.Get(pgxpool.New(t.Context(), server.URL()))(t)
	t.Cleanup(pool.Close)
	execute(t, pool, "CREATE TABLE reports (night text, total bigint)")
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	must.Do(t, nightly(t.Context(), client, pool, due))
	err := standby.Cut(t, server.URL(), func(pool *pgxpool.Pool) error {
		return nightly(t.Context(), client, pool, due)
	})
	if err != nil && !errors.Is(err, pglock.ErrOutcomeUnknown) { // which it is after five seconds
		t.Error(err)
	}
}

var due = time.Date(2026, 11, 22, 2, 30, 0, 0, time.UTC)

func execute(t *testing.T, pool *pgxpool.Pool, statements string) {
	t.Helper()
	must.Get(pool.Exec(t.Context(), statements, pgx.QueryExecModeSimpleProtocol))(t)
}
