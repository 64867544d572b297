package fencedstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// The question whether a key is done writes the receipt. Without an answer nobody knows whether it has let go of the
// row, so no other write gets it.
func TestAnUnansweredQuestionKeepsTheRowOfItsReceipt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	do := func(key string) error {
		return b.store.Once(t.Context(), l, key, func(context.Context, pgx.Tx) error { return nil })
	}
	must.Do(t, do("k"))
	b.answersOutcomes(t, `RAISE EXCEPTION USING ERRCODE = '42501'`)
	var rows []uuid.UUID
	for range 2 {
		unknown, is := errors.AsType[*fencedstore.OutcomeUnknownError](do("k"))
		if !is {
			t.Fatal("the question was answered")
		}
		rows = append(rows, unknown.Receipt.ID)
	}
	if rows[0] == rows[1] {
		t.Errorf("two writes have the row %v, and nobody has answered the first one's question", rows[0])
	}
}

// A line that is cut between a question and its COMMIT keeps the row of the receipt from nobody for long.
func TestAQuestionForAnOutcomeDoesNotKeepItsRowForLong(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	var known bool
	var idle string
	err = errors.Join(
		tx.QueryRow(t.Context(),
			"SELECT pglock.outcome(gen_random_uuid(), gen_random_uuid(), pglock.database_id())").Scan(&known),
		tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&idle))
	if err != nil || known || idle != "1s" {
		t.Errorf("%v, %v; ended when idle for %s", known, err, idle)
	}
}
