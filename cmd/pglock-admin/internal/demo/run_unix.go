//go:build unix

package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/guest"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/lockadmin"
)

const (
	// patience limits a step that does not wait for a lease.
	patience = 10 * time.Second
	// tidying limits the removal of the schema from a database that stays.
	tidying = 10 * time.Second
)

// story is what the seed determines.
type story struct {
	account  string
	names    []string
	deposits []int64
}

func newStory(seed uint64, workers int) story {
	r := rand.New(rand.NewPCG(seed, 0))
	animals := []string{"otter", "heron", "lynx", "raven", "badger", "marten", "osprey", "viper", "bison", "crane",
		"dingo", "gecko"}
	r.Shuffle(len(animals), func(i, j int) { animals[i], animals[j] = animals[j], animals[i] })
	s := story{account: fmt.Sprintf("account/%d", 10+r.IntN(90)), names: animals[:workers]}
	used := map[int64]bool{}
	for len(s.deposits) < workers {
		if d := 10 * (2 + r.Int64N(28)); !used[d] {
			used[d] = true
			s.deposits = append(s.deposits, d)
		}
	}
	return s
}

func letter(i int) string { return string(rune('A' + i)) }

// play plays the story. When ctx ends it stops at once. However it returns, no process, folder or schema is left. The
// error is errStory if the story did not end as it must, errTidy if something is left after all, or what went wrong.
func play(ctx context.Context, o options) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	p := &performance{options: o, story: newStory(o.seed, o.workers), stage: newStage(o)}
	defer func() {
		p.stage.shut()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if left := p.tidy(ctx); left != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errTidy, left))
		}
	}()
	if err := p.prepare(ctx); err != nil {
		return err
	}
	return p.perform(ctx)
}

// performance is one performance and all that must be removed after it.
type performance struct {
	options
	story
	stage *stage

	server   *pgserver.Server
	schema   string
	drop     func(context.Context) error // the schema; nil: there is none
	pool     *pgxpool.Pool
	admin    *lockadmin.Admin
	players  []*player
	results  []result
	outcomes []outcome
}

func (p *performance) prepare(ctx context.Context) (err error) {
	p.stage.print("%s  one lock, one account, %d workers, leases of %v, seed %d",
		p.stage.style(styleTitle, "pglock demo"), p.workers, p.ttl, p.seed)
	if p.server, err = pgserver.Locate(ctx, p.connString, progress{p.stage}); err != nil {
		return err
	}
	where := "a throwaway server, removed at the end"
	p.schema = "pglock"
	if p.server.Kind() == pgserver.KindURL {
		p.schema = fmt.Sprintf("pglock_demo_%08x", rand.Uint32())
		where = "in schema " + p.schema + ", dropped at the end"
	} else if err := pgserver.UnsetPG(); err != nil { // the workers inherit this
		return err
	}
	p.stage.print("%s", p.stage.style(styleFaint, fmt.Sprintf("%s\n%s", p.server.Description(), where)))
	if p.drop, err = guest.MakeSchema(ctx, p.server.URL(), p.schema); err != nil {
		return fmt.Errorf("demo: make the schema: %w", err)
	}
	config, err := pgxpool.ParseConfig(p.server.URL())
	if err != nil {
		return err
	}
	config.MaxConns = 2
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if err := makeLedger(ctx, p.pool, p.schema, p.account); err != nil {
		return err
	}
	if p.admin, err = lockadmin.New(ctx, p.pool, lockadmin.WithSchema(p.schema)); err != nil {
		return err
	}
	for i, name := range p.names {
		player, err := startPlayer(letter(i), setup{URL: p.server.URL(), Schema: p.schema, Account: p.account,
			Holder: letter(i) + " " + name, TTL: p.ttl})
		if err != nil {
			return err
		}
		p.players = append(p.players, player)
	}
	for _, player := range p.players {
		if _, err := player.expect(ctx, patience, saysReady); err != nil {
			return err
		}
	}
	return nil
}

func (p *performance) perform(ctx context.Context) error {
	for number, fenced := range []bool{false, true} {
		if err := p.act(ctx, number+1, fenced); err != nil {
			return err
		}
	}
	p.epilogue()
	return errors.Join(p.verdict(), p.stage.err)
}

// tidy removes everything, in an order in which nothing depends on what was removed before.
func (p *performance) tidy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
	defer cancel()
	var errs []error
	for _, player := range p.players {
		errs = append(errs, player.end())
	}
	if p.pool != nil {
		cli.CloseSoon(p.pool)
	}
	if p.server == nil {
		return errors.Join(errs...)
	}
	if p.server.Kind() == pgserver.KindURL && p.drop != nil {
		errs = append(errs, p.dropSchema(ctx))
	}
	return errors.Join(append(errs, p.server.Stop())...)
}

func (p *performance) dropSchema(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.server.URL())
	if err == nil {
		defer conn.Close(ctx)
		err = dropLedger(ctx, conn, p.schema)
	}
	if err == nil {
		err = p.drop(ctx)
	}
	if err != nil {
		return fmt.Errorf("schema %s (DROP SCHEMA %s CASCADE): %w", p.schema, p.schema, err)
	}
	return nil
}

// progress takes the line that announces a download.
type progress struct{ *stage }

func (p progress) Write(b []byte) (int, error) {
	p.print("%s", strings.TrimRight(string(b), "\n"))
	return len(b), nil
}
