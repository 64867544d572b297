package fencedstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// unanswered is a connection that loses the answer to COMMIT when it is armed, and says so.
type unanswered struct {
	net.Conn
	armed *atomic.Bool
	lost  chan<- struct{}
}

func (c unanswered) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("COMMIT\x00")) && c.armed.CompareAndSwap(true, false) {
		c.lost <- struct{}{}
		return c.Conn.Read(b) // the server has no more to say
	}
	return n, err
}

// loses makes the connections of a configuration lose such an answer.
func loses(config *pgx.ConnConfig, armed *atomic.Bool, lost chan<- struct{}) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return unanswered{conn, armed, lost}, err
	}
}

// answersOutcomes makes the server do something else when it is asked for an outcome.
func (b *bench) answersOutcomes(t *testing.T, by string) {
	t.Helper()
	b.exec(t, `CREATE OR REPLACE FUNCTION pglock.outcome(p_receipt_id uuid, p_write_id uuid, p_database_id uuid)
		RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN `+by+`; END $$`)
}

// wantUnknown fails the test unless an error says that the outcome is unknown, and not that a lease has ended: that
// would say that nothing was written.
func wantUnknown(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, pglock.ErrOutcomeUnknown) || errors.Is(err, pglock.ErrLost) ||
		errors.Is(err, pglock.ErrReleased) {
		t.Errorf("I17: %s: %v, want ErrOutcomeUnknown, and neither ErrLost nor ErrReleased", what, err)
	}
}

// A COMMIT whose answer is lost outlasts the lease, whose end ends the wait for it. Nobody says what became of it, so
// the end of the lease does not either.
func TestI17_ALeaseThatEndsDuringCommitDoesNotMakeTheOutcomeKnown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE ledger (of text)`)
	b.answersOutcomes(t, `RAISE EXCEPTION USING ERRCODE = '42501'`)
	var armed atomic.Bool
	lost := make(chan struct{}, 1)
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	loses(config, &armed, lost)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	store := fencedstore.New(b.db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig = config }))
	writes := 0
	for how, write := range map[string]func(*pglock.Lease, work) error{
		"Store": func(l *pglock.Lease, do work) error {
			return store.Write(l.Context(), l, inTx(do))
		},
		"SQLStore": func(l *pglock.Lease, do work) error {
			return fencedstore.NewSQL(db).Write(l.Context(), l, inSQL(do))
		},
	} {
		for end, by := range map[string]func(*pglock.Lease){
			"broken": func(l *pglock.Lease) {
				b.breaks(t, l)
				_, _ = l.Check(t.Context())
			},
			"released": func(l *pglock.Lease) { must.Do(t, l.Release(t.Context())) },
		} {
			lease := b.acquire(t, how+" "+end)
			done := must.Go(func() error {
				return write(lease, func(ctx context.Context, tx transaction) error {
					armed.Store(true)
					return tx.exec(ctx, `INSERT INTO ledger VALUES ($1)`, how)
				})
			})
			<-lost
			by(lease)
			wantUnknown(t, how+", "+end, <-done)
			writes++
		}
	}
	b.wantRows(t, writes, `ledger`)
}

// A key was done before, and the wait for its confirmation ends with the lease.
func TestI17_ALeaseThatEndsDuringTheConfirmationOfAKeyDoesNotDenyIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	once := func(l *pglock.Lease) error { return b.store.Once(l.Context(), l, "k", nothing) }
	must.Do(t, once(b.acquire(t, "first")))
	b.answersOutcomes(t, `PERFORM pg_sleep(60)`)
	l := b.acquire(t, "second")
	done := must.Go(func() error { return once(l) })
	pgtest.Eventually(t, "the question to be asked", func() bool {
		return b.number(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event = 'PgSleep'`) == 1
	})
	must.Do(t, l.Release(t.Context()))
	wantUnknown(t, "Once", <-done)
}
