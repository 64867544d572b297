//go:build unix

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// work is the life of one worker: it reads commands from in, one JSON object per line, and writes its results to out.
// It returns when in ends, at the latest with the process that plays the story.
func work(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := json.NewDecoder(in)
	w := &worker{out: json.NewEncoder(out)}
	if err := lines.Decode(&w.setup); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("demo: first line: %w", err)
	}
	commands := make(chan command, 16)
	go func() { // ends with in, at the latest with the process
		defer cancel()
		defer close(commands)
		receive(lines, commands)
	}()
	if err := w.work(ctx, commands); err != nil && ctx.Err() == nil {
		w.tell(report{Says: saysFailed, Message: err.Error()})
		return err
	}
	return nil
}

type worker struct {
	setup
	out    *json.Encoder
	pool   *pgxpool.Pool
	client *pglock.Client
	store  *fencedstore.Store
	lease  *pglock.Lease
	grant  pglock.Grant // of lease
	read   int64
}

func (w *worker) tell(r report) { _ = w.out.Encode(r) } // a storyteller that is gone ends the worker in another way

func (w *worker) work(ctx context.Context, commands <-chan command) (err error) {
	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 3
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer cli.CloseSoon(w.pool)
	w.client, err = pglock.New(ctx, w.pool, pglock.WithSchema(w.Schema), pglock.WithDefaultHolder(w.Holder),
		pglock.WithDefaultTTL(w.TTL))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = w.client.Close(closing) // what it cannot release ends with its TTL, or with the schema
	}()
	w.store = fencedstore.New(w.pool)
	w.tell(report{Says: saysReady})
	for c := range commands {
		if err := w.do(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.Do, err)
		}
	}
	return nil
}

func (w *worker) do(ctx context.Context, c command) (err error) {
	switch c.Do {
	case doAcquire:
		if w.lease, err = w.client.Acquire(ctx, w.Account); err != nil {
			return err
		}
		w.grant = w.lease.Export()
		w.tell(report{Says: saysGranted, Token: int64(w.lease.Token())})
	case doRead:
		if w.read, err = readBalance(ctx, w.pool, w.Schema, w.Account); err != nil {
			return err
		}
		w.tell(report{Says: saysRead, Read: w.read})
	case doWrite:
		return w.write(ctx, c)
	case doRelease:
		if err := w.lease.Release(ctx); err != nil {
			return err
		}
		w.tell(report{Says: saysReleased})
	}
	return nil
}

// write writes what was read plus the deposit. Without the fence it does what most programs do: they took the lock,
// so they write, without asking whether the lease has ended meanwhile.
func (w *worker) write(ctx context.Context, c command) error {
	e := entry{Act: c.Act, Worker: w.Holder, Token: int64(w.lease.Token()), Read: w.read, Wrote: w.read + c.Amount}
	update := func(ctx context.Context, tx pgx.Tx) error { return writeBalance(ctx, tx, w.Schema, w.Account, e) }
	var err error
	if c.Fenced {
		if err = w.store.Write(ctx, w.lease, update); errors.Is(err, pglock.ErrLost) && !w.lease.Valid() {
			// The library knew this without a server. A program without the library would not know, so write as it
			// would.
			w.tell(report{Says: saysInvalid, Message: err.Error()})
			err = w.writeRegardless(ctx, update)
		}
	} else {
		err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return update(ctx, tx) })
	}
	r := report{Says: saysRefused, Token: e.Token, Read: e.Read, Wrote: e.Wrote}
	if refusal, is := errors.AsType[*pgconn.PgError](err); is {
		r.State, r.Message = refusal.Code, refusal.Message
	} else if errors.Is(err, pglock.ErrLost) || errors.Is(err, fencedstore.ErrStaleToken) {
		r.Message = err.Error()
	} else if err != nil {
		return err
	} else {
		r.Says = saysWrote
	}
	w.tell(r)
	return nil
}

// writeRegardless is the fenced write of a program in any language: three statements, and no look at any clock.
func (w *worker) writeRegardless(ctx context.Context, update func(context.Context, pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		fence := "SELECT " + pgx.Identifier{w.Schema, "fence"}.Sanitize() + "($1, $2, $3::text::uuid)"
		if _, err := tx.Exec(ctx, fence, w.grant.Lock, int64(w.grant.Token), w.grant.ID.String()); err != nil {
			return err
		}
		return update(ctx, tx)
	})
}
