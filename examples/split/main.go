// Command split shows names that are split between two databases, each with its own pool, client and store.
//
//	go run ./examples/split
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/internal/stage"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	customers = 40
	rounds    = 3
	table     = "CREATE TABLE stock (customer text PRIMARY KEY, amount int NOT NULL)"
)

func main() {
	stage.Main(stage.Play{Name: "split", Tables: table, Story: story})
}

func story(ctx context.Context, s *stage.Stage) (shown string, err error) {
	second, drop, err := secondDatabase(ctx, s)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, drop()) }()
	var parts Parts
	for _, pool := range []*pgxpool.Pool{s.Pool, second} {
		client, err := pglock.New(ctx, pool, pglock.WithSchema(s.Schema))
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
		parts = append(parts, Part{pool, client, fencedstore.New(pool)})
	}
	return "each lock, its fence and its data are in one database, and nothing comprises two.",
		errors.Join(spread(ctx, s, parts), together(ctx, s, parts), apart(ctx, s, parts))
}

// secondDatabase makes another database beside that of the story, which stands for another server.
func secondDatabase(ctx context.Context, s *stage.Stage) (*pgxpool.Pool, func() error, error) {
	config := s.Pool.Config()
	at, err := url.Parse(config.ConnString())
	if err != nil {
		return nil, nil, err
	}
	at.Path = "/" + s.Schema + "_second"
	name := pgx.Identifier{s.Schema + "_second"}.Sanitize()
	if _, err := s.Pool.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, nil, err
	}
	config.ConnConfig.Database = s.Schema + "_second"
	delete(config.ConnConfig.RuntimeParams, "search_path") // its tables are in the schema public
	pool, err := pgxpool.NewWithConfig(ctx, config)
	drop := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if pool != nil {
			pool.Close()
		}
		_, err := s.Pool.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		return err
	}
	if err == nil {
		err = migrations.Up(ctx, at.String(), migrations.WithSchema(s.Schema))
	}
	if err == nil {
		_, err = pool.Exec(ctx, table)
	}
	if err != nil {
		return nil, nil, errors.Join(err, drop())
	}
	return pool, drop, nil
}

// spread has a goroutine for each round write under the locks of all customers.
func spread(ctx context.Context, s *stage.Stage, parts Parts) error {
	var all sync.WaitGroup
	errs := make([]error, rounds)
	for r := range errs {
		all.Go(func() {
			for n := range customers {
				name := fmt.Sprintf("customer-%d/stock", n)
				errs[r] = errors.Join(errs[r], parts.Write(ctx, name, func(ctx context.Context, tx pgx.Tx) error {
					const add = `INSERT INTO stock AS s VALUES ($1, 1)
						ON CONFLICT (customer) DO UPDATE SET amount = s.amount + 1`
					_, err := tx.Exec(ctx, add, name)
					return err
				}))
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	found := 0
	for i, part := range parts {
		var names, locks, fences, amount int
		const here = `SELECT (SELECT count(*) FROM stock), (SELECT count(*) FROM %[1]s.locks),
			(SELECT count(*) FROM %[1]s.fences), (SELECT coalesce(sum(amount), 0) FROM stock)`
		sql := fmt.Sprintf(here, pgx.Identifier{s.Schema}.Sanitize())
		if err := part.Pool.QueryRow(ctx, sql).Scan(&names, &locks, &fences, &amount); err != nil {
			return err
		}
		if names < customers/4 || locks != names || fences != names || amount != rounds*names {
			return fmt.Errorf("%w: database %d has %d names, %d locks, %d fences, and an amount of %d",
				stage.ErrPromise, i+1, names, locks, fences, amount)
		}
		s.Say(fmt.Sprint("part ", i+1), "has %d names, %d locks, %d fences, and no write is lost", names, locks, fences)
		found += names
	}
	s.Say("both", "have %d of %d names", found, customers)
	if found != customers {
		return fmt.Errorf("%w: %d of %d names", stage.ErrPromise, found, customers)
	}
	return nil
}

// together takes the locks of one customer.
func together(ctx context.Context, s *stage.Stage, parts Parts) error {
	leases, err := parts.AcquireAll(ctx, "acme/orders", "acme/stock")
	if err != nil {
		return err
	}
	s.Say("acme", "has %d locks at once: both are in one database", len(leases.All()))
	return leases.Release(ctx)
}

// apart takes locks of different databases.
func apart(ctx context.Context, s *stage.Stage, parts Parts) error {
	const one = "acme/orders"
	var other string
	for n := range customers {
		if other = fmt.Sprintf("customer-%d/orders", n); parts.Of(other) != parts.Of(one) {
			break
		}
	}
	if _, err := parts.AcquireAll(ctx, one, other); !errors.Is(err, ErrApart) {
		return fmt.Errorf("%w: locks of two databases at once: %v", stage.ErrPromise, err)
	}
	s.Say("both", "%s and %s at once: REFUSED", one, other)

	// Each database counts its tokens from the beginning. So the same number comes twice, of different locks.
	mine, its := parts.Of(one), parts.Of(other)
	var tokens [2][]pglock.Token
	for n := range customers {
		for i, names := range []string{one, other} {
			lease, err := parts.Of(names).Client.Acquire(ctx, names)
			if err != nil {
				return err
			}
			tokens[i] = append(tokens[i], lease.Token())
			if err := lease.Release(ctx); err != nil {
				return err
			}
		}
		if n > 0 && (tokens[0][n] <= tokens[0][n-1] || tokens[1][n] <= tokens[1][n-1]) {
			return fmt.Errorf("%w: tokens of one lock do not ascend: %v", stage.ErrPromise, tokens)
		}
	}
	i := slices.IndexFunc(tokens[0], func(t pglock.Token) bool { return slices.Contains(tokens[1], t) })
	if i < 0 {
		return fmt.Errorf("%w: no token came twice: %v", stage.ErrPromise, tokens)
	}
	s.Say("both", "token %d came twice, for %s and for %s: they cannot be compared", tokens[0][i], one, other)

	return mine.Client.Do(ctx, one, func(ctx context.Context, lease *pglock.Lease) error {
		nothing := func(context.Context, pgx.Tx) error { return nil }
		if err := its.Store.Write(ctx, lease, nothing); !errors.Is(err, pglock.ErrWrongDatabase) {
			return fmt.Errorf("%w: the other database's fence let the lease pass: %v", stage.ErrPromise, err)
		}
		s.Say("both", "a write in one database under a lock of the other: REFUSED")
		return nil
	})
}
