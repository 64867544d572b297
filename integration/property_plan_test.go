package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// plan is what a transaction will do, drawn before it begins.
type plan struct {
	id       int64
	accounts []string // in byte order, as the fences must be
	delta    int64
	again    bool // the same token may pass again
	fence    string
	hole     bool // the fence is not passed when the write comes: it must be refused
	forged   int  // which of the writes comes then
	before   time.Duration
	fenced   time.Duration
	end      time.Duration
	lifted   bool // the limits of the fence, as no program may
	redone   bool // the write is rolled back to a savepoint, and made again
	settings []string
	between  string // what happens to the lease between the work and COMMIT
	last     string
}

func (w *writer) draw() plan {
	r := w.rand
	one := func(n int) bool { return r.IntN(n) == 0 }
	pause := func() time.Duration {
		if !one(9) {
			return time.Duration(r.Int64N(int64(2 * time.Millisecond)))
		}
		return time.Duration(r.Int64N(int64(w.claim.ttl) * 3 / 2)) // often past the lease
	}
	w.next++
	p := plan{id: w.next, delta: 1 + r.Int64N(9), again: one(3), before: pause(), fenced: pause(), end: pause(),
		lifted: one(2),
		redone: one(5), forged: r.IntN(3), last: "COMMIT"}
	p.accounts = []string{accounts[r.IntN(len(accounts))]}
	if second := accounts[r.IntN(len(accounts))]; w.keyed && second > p.accounts[0] {
		p.accounts = append(p.accounts, second)
	}
	if one(3) {
		p.between = []string{"renewed", "released", "broken", "run out", "run out"}[r.IntN(5)]
		p.lifted = p.lifted || p.between == "run out"
	}
	for _, s := range []string{`SET CONSTRAINTS ALL DEFERRED`, `SET LOCAL session_replication_role = replica`} {
		if one(4) {
			p.settings = append(p.settings, s)
		}
	}
	switch passed, holes := []string{"each", "each", "each", "together", "released savepoint", "exception block",
		"rolled back, and again"},
		[]string{"none", "rolled back", "undone block", "of another account"}; {
	case w.keyed && one(8):
		p.fence, p.hole, p.forged = "of the old key", true, 3
	case w.store != nil:
		p.fence = "Store"
	case one(4):
		p.fence, p.hole = holes[r.IntN(len(holes))], true
	default:
		p.fence = passed[r.IntN(len(passed))]
	}
	if p.hole { // others pass their fences meanwhile
		p.fenced = time.Duration(r.Int64N(int64(w.claim.ttl)))
	}
	switch {
	case w.store != nil && one(4): // Write queues the check again; the early one holds off who would end the lease
		p.settings, p.between = append(p.settings, `SET CONSTRAINTS ALL IMMEDIATE`), ""
	case one(10):
		p.last = "ROLLBACK"
	case one(3) && w.store == nil:
		p.last = fmt.Sprintf("SELECT pglock.seal('{%s}'); COMMIT", strings.Join(w.resources(p), ","))
	}
	return p
}

// resources are those of the plan's accounts, each once.
func (w *writer) resources(p plan) (resources []string) {
	for _, account := range p.accounts {
		if r := w.resource(account); !slices.Contains(resources, r) {
			resources = append(resources, r)
		}
	}
	return resources
}

// passFence passes the fences of the plan's accounts in its way.
func (w *writer) passFence(ctx context.Context, p plan) (err error) {
	exec := func(sql string, args ...any) {
		if err == nil {
			_, err = w.conn.Exec(ctx, sql, args...)
		}
	}
	c, resources := w.claim, w.resources(p)
	each := func() {
		for _, r := range resources {
			exec(`SELECT FROM pglock.fence($1, $2, $3, $4, $5)`, c.lock, c.token, c.id.String(), r, p.again)
		}
	}
	inBlock := func(undo bool) {
		for _, r := range resources {
			exec(`SELECT fence_in_block($1, $2, $3, $4, $5, $6)`, c.lock, c.token, c.id.String(), r, p.again, undo)
		}
	}
	switch p.fence {
	case "each", "of the old key":
		each()
	case "together":
		exec(`SELECT FROM pglock.fence_all(array_fill($1::text, ARRAY[$5::int]), array_fill($2::bigint, ARRAY[$5]), array_fill($3::text::uuid, ARRAY[$5]), $4, $6)`,
			c.lock, c.token, c.id.String(), resources, len(resources), p.again)
	case "released savepoint":
		exec(`SAVEPOINT f`)
		each()
		exec(`RELEASE f`)
	case "exception block":
		inBlock(false)
	case "rolled back, and again":
		exec(`SAVEPOINT f`)
		each()
		exec(`ROLLBACK TO f`)
		each()
	case "rolled back":
		exec(`SAVEPOINT f`)
		each()
		exec(`ROLLBACK TO f`)
	case "undone block":
		inBlock(true)
	case "of another account":
		exec(`SELECT FROM pglock.fence($1, $2, $3, 'ledger/nobody', $4)`, c.lock, c.token, c.id.String(), p.again)
	}
	return err
}

// queryer is a transaction of the library or a connection with one.
type queryer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// work is all that a plan does between the fence and the end.
func (w *writer) work(ctx context.Context, q queryer, p plan, read map[string]int64) (err error) {
	exec := func(sql string, args ...any) {
		if err == nil {
			_, err = q.Exec(ctx, sql, args...)
		}
	}
	for _, sql := range p.settings {
		exec(sql)
	}
	if p.lifted {
		exec(`SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`)
	}
	time.Sleep(p.fenced)
	if p.hole {
		forgeries := []string{`UPDATE account SET balance = balance + 1000 WHERE key = $1`,
			`DELETE FROM account WHERE key = $1`,
			`INSERT INTO account SELECT 'forged ' || gen_random_uuid(), 1000 WHERE $1 <> ''`,
			`UPDATE account SET key = key || '!' WHERE key = $1`}
		exec(forgeries[p.forged], p.accounts[0])
	}
	write := func() {
		for _, account := range p.accounts {
			balance := read[account]
			if w.keyed && err == nil {
				err = q.QueryRow(ctx, `SELECT balance FROM account WHERE key = $1`, account).Scan(&balance)
			}
			exec(`UPDATE account SET balance = $2 WHERE key = $1`, account, balance+p.delta)
			exec(`INSERT INTO writes (id, account, resource, delta, lock, token, grant_id, again) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
				p.id, account, w.resource(account), p.delta, w.claim.lock, w.claim.token, w.claim.id.String(), p.again)
		}
	}
	if p.redone {
		exec(`SAVEPOINT w`)
		write()
		exec(`ROLLBACK TO w`)
		exec(`SAVEPOINT w`)
	}
	write()
	time.Sleep(p.end)
	if err == nil {
		switch c := w.claim; p.between { // no answer is "too late", which is as good
		case "renewed":
			_, _ = w.other.renew(ctx, grant{name: c.lock, token: c.token, id: c.id}, patience)
		case "released":
			_, _ = w.other.release(ctx, grant{name: c.lock, token: c.token, id: c.id})
		case "run out":
			time.Sleep(time.Until(c.ends)) // and COMMIT at once, before anybody takes it over
		case "broken":
			_, _ = w.other.Exec(ctx, `SELECT FROM pglock.break_lock($1, 'test', 'its holder', $2)`, c.lock, c.token)
		}
	}
	return err
}
