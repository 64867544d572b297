package pglock_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// rows are the contents of every table of the schema, of the token sequence, and of the application's table.
func rows(t *testing.T, conn *pgx.Conn) (all string) {
	t.Helper()
	must.Do(t, conn.QueryRow(t.Context(), allRows).Scan(&all))
	return all
}

var allRows = func() string {
	var parts []string
	for _, table := range []string{"pglock.locks", "pglock.waiters", "pglock.sessions", "pglock.fences",
		"pglock.events", "pglock.installation", "pglock.subtrees",
		"pglock.spent_grants", "pglock.receipts", "pglock.done_keys", "pglock.fencing_token_seq", "accounts"} {
		parts = append(parts, "'"+table+":'",
			"(SELECT coalesce(string_agg(r::text, E'\\n' ORDER BY r::text), 'none') FROM (SELECT * FROM "+table+") r)")
	}
	return "SELECT concat_ws(E'\\n', " + strings.Join(parts, ", ") + ")"
}()

func startClient(t *testing.T, pool *pgxpool.Pool, opts ...pglock.Option) *pglock.Client {
	t.Helper()
	c := must.Get(pglock.New(t.Context(), pool, opts...))(t)
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close the client: %v", err)
		}
	})
	return c
}

func newAdmin(t *testing.T, pool *pgxpool.Pool, opts ...lockadmin.Option) *lockadmin.Admin {
	t.Helper()
	a := must.Get(lockadmin.New(t.Context(), pool, opts...))(t)
	return a
}

// exported is the grant ID as Export tells it.
func exported(l *pglock.Lease) uuid.UUID { return l.Export().ID }

func mustAcquire(t *testing.T, c *pglock.Client, name string, opts ...pglock.AcquireOption) *pglock.Lease {
	t.Helper()
	l := must.Get(c.TryAcquire(t.Context(), name, opts...))(t)
	return l
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// refusal is a call that must fail with the sentinel and say all of these, and change nothing.
type refusal struct {
	name string
	call func(ctx context.Context) error
	want error
	says []string
}

// argument is a refusal that names the field, the value and the rule.
func argument(name, field, value, rule string, call func(ctx context.Context) error) refusal {
	return refusal{name, func(ctx context.Context) error {
		err := call(ctx)
		if a, is := errors.AsType[*pglock.ArgumentError](err); is && a.Field != field {
			return errors.New("wrong field " + a.Field)
		}
		return err
	}, pglock.ErrInvalid, []string{field, value, rule}}
}

func checkRefusals(t *testing.T, conn *pgx.Conn, refusals []refusal) {
	t.Helper()
	before := rows(t, conn)
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			err := r.call(t.Context())
			if !errors.Is(err, r.want) {
				t.Fatalf("%v, want %v", err, r.want)
			}
			for _, s := range r.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if after := rows(t, conn); after != before {
				t.Fatalf("rows before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// watchOnce gives the first error of a watch.
func watchOnce(ctx context.Context, c *pglock.Client, name string) error {
	for _, err := range c.Watch(ctx, name) {
		return err
	}
	return nil
}

func ignore[T any](_ T, err error) error { return err }

var badNames = []struct{ what, name, value, rule string }{
	{"empty", "", "empty", "512"},
	{"too long", strings.Repeat("x", 513), "513", "512"},
	{"no UTF-8", "a\xff", `\xff`, "UTF-8"},
	{"with NUL", "a\x00b", `\x00`, "NUL"},
}

func TestI11_RefusedCallsChangeNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, conn := db.Pool(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts VALUES (1, 100)")
	c := startClient(t, pool, pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held", pglock.WithMetadata(json.RawMessage(`{"a": 1}`)))
	must.Do(t, mustAcquire(t, c, "free").Release(t.Context()))

	admin := newAdmin(t, pool)
	var all []refusal
	option := func(name, field, value, rule string, o pglock.AcquireOption) {
		all = append(all,
			argument("TryAcquire "+name, field, value, rule, func(ctx context.Context) error {
				return ignore(c.TryAcquire(ctx, "new", o))
			}),
			argument("Acquire "+name, field, value, rule, func(ctx context.Context) error {
				return ignore(c.Acquire(ctx, "new", o))
			}),
			argument("Do "+name, field, value, rule, func(ctx context.Context) error {
				return c.Do(ctx, "new", fnRan, o)
			}))
	}
	for _, b := range badNames {
		all = append(all,
			argument("TryAcquire name "+b.what, "name", b.value, b.rule, func(ctx context.Context) error {
				return ignore(c.TryAcquire(ctx, b.name))
			}),
			argument("Acquire name "+b.what, "name", b.value, b.rule, func(ctx context.Context) error {
				return ignore(c.Acquire(ctx, b.name))
			}),
			argument("Do name "+b.what, "name", b.value, b.rule, func(ctx context.Context) error {
				return c.Do(ctx, b.name, fnRan)
			}),
			argument("Get name "+b.what, "name", b.value, b.rule, func(ctx context.Context) error {
				return ignore(admin.Get(ctx, b.name))
			}),
			argument("Watch name "+b.what, "name", b.value, b.rule, func(ctx context.Context) error {
				return watchOnce(ctx, c, b.name)
			}),
			argument("AcquireAll name "+b.what, "names[1]", b.value, b.rule,
				func(ctx context.Context) error { return ignore(c.AcquireAll(ctx, []string{"new", b.name})) }),
			argument("Break name "+b.what, "name", b.value, b.rule, func(ctx context.Context) error {
				return ignore(admin.Break(ctx, b.name, "stuck", lockadmin.BreakOptions{}))
			}))
		if b.name != "" {
			all = append(all,
				argument("Fences lock "+b.what, "lock", b.value, b.rule, func(ctx context.Context) error {
					return ignore(lists.All(admin.Fences(ctx, lockadmin.FencesQuery{Lock: b.name})))
				}),
				argument("Waiters lock "+b.what, "lock", b.value, b.rule, func(ctx context.Context) error {
					return ignore(lists.All(admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: b.name})))
				}),
				argument("History lock "+b.what, "lock", b.value, b.rule, func(ctx context.Context) error {
					return ignore(lists.All(admin.History(ctx, lockadmin.HistoryQuery{Lock: b.name})))
				}),
				argument("List prefix "+b.what, "prefix", b.value, b.rule,
					func(ctx context.Context) error {
						return ignore(lists.All(admin.Locks(ctx, lockadmin.LocksQuery{Prefix: b.name})))
					}))
		}
	}
	for _, ttl := range []time.Duration{0, -time.Second, 99 * time.Millisecond, 24*time.Hour + 1} {
		option("TTL "+ttl.String(), "TTL", ttl.String(), "from 100ms to 24h", pglock.WithTTL(ttl))
		all = append(all, argument("New TTL "+ttl.String(), "default TTL", ttl.String(), "from 100ms to 24h",
			func(ctx context.Context) error { return ignore(pglock.New(ctx, pool, pglock.WithDefaultTTL(ttl))) }))
	}
	option("max wait", "max wait", "-1ns", "not be negative", pglock.WithMaxWait(-1))
	option("label empty", "holder", "empty", "256", pglock.WithHolder(""))
	option("label too long", "holder", "257", "256", pglock.WithHolder(strings.Repeat("x", 257)))
	option("metadata no JSON", "metadata", `{\"a\"`, "valid JSON", pglock.WithMetadata(json.RawMessage(`{"a"`)))
	option("metadata no UTF-8", "metadata", `"\"\xff\""`, "in UTF-8", pglock.WithMetadata(json.RawMessage("\"\xff\"")))
	option("metadata too big", "metadata", "8193", "8192",
		pglock.WithMetadata(json.RawMessage(`"`+strings.Repeat("x", 8191)+`"`)))
	option("metadata with NUL", "metadata", "u0000", "jsonb", pglock.WithMetadata(json.RawMessage(`"\u0000"`)))
	option("metadata with half a surrogate", "metadata", "ud800", "jsonb",
		pglock.WithMetadata(json.RawMessage(`"\ud800"`)))
	option("metadata that swells", "metadata", "bytes long as jsonb", "16384",
		pglock.WithMetadata(json.RawMessage("["+strings.Repeat("1e1000,", 1000)+"1]")))
	all = append(all,
		argument("Do without function", "fn", "nil", "be a function", func(ctx context.Context) error {
			return c.Do(ctx, "new", nil)
		}),
		argument("New without pool", "pool", "nil", "be a *pgxpool.Pool", func(ctx context.Context) error {
			return ignore(pglock.New(ctx, nil))
		}),
		argument("New schema empty", "schema", "empty", "63",
			func(ctx context.Context) error { return ignore(pglock.New(ctx, pool, pglock.WithSchema(""))) }),
		argument("New schema too long", "schema", "64", "63",
			func(ctx context.Context) error {
				return ignore(pglock.New(ctx, pool, pglock.WithSchema(strings.Repeat("x", 64))))
			}),
		argument("New holder with NUL", "holder", `\x00`, "NUL",
			func(ctx context.Context) error {
				return ignore(pglock.New(ctx, pool, pglock.WithDefaultHolder("a\x00")))
			}),
		refusal{"New without schema", func(ctx context.Context) error {
			return ignore(pglock.New(ctx, pool, pglock.WithSchema("nowhere")))
		}, pglock.ErrSchema, []string{`"nowhere"`, "migrate up"}},
		argument("Locks page size", "page size", "10001", "10000",
			func(ctx context.Context) error {
				return ignore(lists.All(admin.Locks(ctx, lockadmin.LocksQuery{PageSize: 10001})))
			}),
		argument("Locks negative page size", "page size", "-1", "10000",
			func(ctx context.Context) error {
				return ignore(lists.All(admin.Locks(ctx, lockadmin.LocksQuery{PageSize: -1})))
			}),
		argument("Prune idle", "idle", "-1s", "not be negative", func(ctx context.Context) error {
			return ignore(admin.Prune(ctx, lockadmin.PruneOptions{Idle: new(-time.Second)}))
		}),
		argument("Prune event age", "event age", "-1s", "not be negative", func(ctx context.Context) error {
			return ignore(admin.Prune(ctx, lockadmin.PruneOptions{EventAge: new(-time.Second)}))
		}),
		argument("New admin without pool", "pool", "nil", "be a *pgxpool.Pool", func(ctx context.Context) error {
			return ignore(lockadmin.New(ctx, nil))
		}),
		argument("New admin schema empty", "schema", "empty", "63",
			func(ctx context.Context) error { return ignore(lockadmin.New(ctx, pool, lockadmin.WithSchema(""))) }),
		refusal{"New admin without schema", func(ctx context.Context) error {
			return ignore(lockadmin.New(ctx, pool, lockadmin.WithSchema("nowhere")))
		}, pglock.ErrSchema, []string{`"nowhere"`, "migrate up"}},
		refusal{"Get unknown", func(ctx context.Context) error {
			return ignore(admin.Get(ctx, "unknown"))
		}, lockadmin.ErrNotFound, []string{`"unknown"`}},
		refusal{"TryAcquire held", func(ctx context.Context) error {
			return ignore(c.TryAcquire(ctx, "held"))
		}, pglock.ErrHeld, []string{`"held"`}},
		refusal{"Break free", func(ctx context.Context) error {
			return ignore(admin.Break(ctx, "free", "stuck", lockadmin.BreakOptions{}))
		}, lockadmin.ErrNotHeld, []string{"free"}},
		refusal{"Break unknown", func(ctx context.Context) error {
			return ignore(admin.Break(ctx, "unknown", "stuck", lockadmin.BreakOptions{}))
		}, lockadmin.ErrNotHeld, []string{"unknown"}},
		refusal{"Break with another token", func(ctx context.Context) error {
			return ignore(admin.Break(ctx, "held", "stuck", lockadmin.BreakOptions{Token: new(pglock.Token(4711))}))
		}, lockadmin.ErrNotHeld, []string{"4711", "held"}},
		argument("Break without reason", "reason", "empty", "1024", func(ctx context.Context) error {
			return ignore(admin.Break(ctx, "held", "", lockadmin.BreakOptions{}))
		}),
		refusal{"Break with blank reason", func(ctx context.Context) error {
			return ignore(admin.Break(ctx, "held", " ", lockadmin.BreakOptions{}))
		}, pglock.ErrInvalid, []string{"reason", "1024"}},
		argument("Break with long reason", "reason", "1025", "1024",
			func(ctx context.Context) error {
				return ignore(admin.Break(ctx, "held", strings.Repeat("x", 1025), lockadmin.BreakOptions{}))
			}),
		argument("Break with token 0", "token", "0", "greater than 0",
			func(ctx context.Context) error {
				return ignore(admin.Break(ctx, "held", "stuck", lockadmin.BreakOptions{Token: new(pglock.Token(0))}))
			}),
		argument("Break with long actor", "actor", "257", "256",
			func(ctx context.Context) error {
				return ignore(admin.Break(ctx, "held", "stuck",
					lockadmin.BreakOptions{Actor: strings.Repeat("x", 257)}))
			}),
	)
	checkRefusals(t, conn, all)
}

func TestI11_RefusedModesQueuesAndWatchesChangeNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, conn := db.Pool(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int PRIMARY KEY, balance int)")
	c := startClient(t, pool, pglock.WithDefaultTTL(time.Hour))
	held := mustAcquire(t, c, "held")
	mustAcquire(t, c, "places", pglock.WithLimit(2))
	mustAcquire(t, c, "full", pglock.WithLimit(1))
	mustAcquire(t, c, "readers", pglock.WithShared())

	var all []refusal
	each := func(name string, want error, says []string, lock string, under context.Context,
		opts ...pglock.AcquireOption) {
		ask := func(ctx context.Context) context.Context {
			if under != nil {
				return under
			}
			return ctx
		}
		all = append(all,
			refusal{"TryAcquire " + name, func(ctx context.Context) error {
				return ignore(c.TryAcquire(ask(ctx), lock, opts...))
			}, want, says},
			refusal{"Acquire " + name, func(ctx context.Context) error {
				return ignore(c.Acquire(ask(ctx), lock, opts...))
			}, want, says},
			refusal{"AcquireAll " + name, func(ctx context.Context) error {
				return ignore(c.AcquireAll(ask(ctx), []string{lock}, opts...))
			}, want, says},
			refusal{"Do " + name, func(ctx context.Context) error {
				return c.Do(ask(ctx), lock, fnRan, opts...)
			}, want, says})
	}
	for _, n := range []int{0, -1, 1001, math.MaxInt} {
		each(fmt.Sprintf("limit %d", n), pglock.ErrInvalid, []string{"limit", fmt.Sprint(n), "from 1 to 1000"}, "new",
			nil, pglock.WithLimit(n))
	}
	both := "be one of them"
	each("shared and limit", pglock.ErrInvalid, []string{"mode", "shared and limit 2", both}, "new", nil,
		pglock.WithShared(), pglock.WithLimit(2))
	each("limit and shared", pglock.ErrInvalid, []string{"mode", "limit 2 and shared", both}, "new", nil,
		pglock.WithLimit(2), pglock.WithShared())
	each("two limits", pglock.ErrInvalid, []string{"mode", "limit 2 and limit 3", both}, "new", nil,
		pglock.WithLimit(2), pglock.WithLimit(3))
	each("nil option", pglock.ErrInvalid, []string{"option", "nil"}, "new", nil, nil)
	for _, want := range []error{pglock.ErrLimit, pglock.ErrInvalid} {
		each(fmt.Sprintf("another limit (%v)", want), want, []string{"'places'", "limit", "3", "2"}, "places", nil,
			pglock.WithLimit(3))
		each(fmt.Sprintf("a lower limit (%v)", want), want, []string{"'places'", "limit", "1", "2"}, "places", nil,
			pglock.WithLimit(1))
	}
	for _, want := range []error{pglock.ErrSelfDeadlock, pglock.ErrHeld} {
		each(fmt.Sprintf("its own (%v)", want), want, []string{"'held'", fmt.Sprint(held.Token())}, "held",
			held.Context())
		each(fmt.Sprintf("its own, shared (%v)", want), want, []string{"'held'"}, "held", held.Context(),
			pglock.WithShared())
	}
	for name, opts := range map[string][]pglock.AcquireOption{
		"places": nil, "readers": nil, "full": {pglock.WithLimit(1)}, "held": {pglock.WithShared()},
	} {
		all = append(all, refusal{"TryAcquire " + name, func(ctx context.Context) error {
			return ignore(c.TryAcquire(ctx, name, opts...))
		},
			pglock.ErrHeld, []string{name}})
	}
	all = append(all,
		refusal{"TryAcquire readers with a limit", func(ctx context.Context) error {
			return ignore(c.TryAcquire(ctx, "readers", pglock.WithLimit(5)))
		}, pglock.ErrHeld, nil},
		refusal{"TryAcquire places, shared", func(ctx context.Context) error {
			return ignore(c.TryAcquire(ctx, "places", pglock.WithShared()))
		}, pglock.ErrHeld, nil},
		argument("AcquireAll nothing", "names", "empty", "at least one", func(ctx context.Context) error {
			return ignore(c.AcquireAll(ctx, nil))
		}),
		argument("AcquireAll twice", "names[2]", `"a"`, "not be the same as names[0]",
			func(ctx context.Context) error { return ignore(c.AcquireAll(ctx, []string{"a", "b", "a"})) }),
		argument("New listen config nil", "listen config", "nil", "pgx.ParseConfig",
			func(ctx context.Context) error { return ignore(pglock.New(ctx, pool, pglock.WithListenConfig(nil))) }),
		argument("New listen config by hand", "listen config", "made by hand", "pgx.ParseConfig",
			func(ctx context.Context) error {
				return ignore(pglock.New(ctx, pool, pglock.WithListenConfig(&pgx.ConnConfig{})))
			}))
	for _, ttl := range []time.Duration{0, -time.Second, 99 * time.Millisecond, 24*time.Hour + 1} {
		all = append(all, argument("New session TTL "+ttl.String(), "session TTL", ttl.String(), "from 100ms to 24h",
			func(ctx context.Context) error { return ignore(pglock.New(ctx, pool, pglock.WithSessionTTL(ttl))) }))
	}
	checkRefusals(t, conn, all)
}

func fnRan(context.Context, *pglock.Lease) error { return errors.New("fn ran") }

func TestI11_RefusedWritesChangeNothing(t *testing.T) {
	t.Parallel()
	db, elsewhere := pgtest.Database(t), pgtest.Database(t)
	pool, conn := db.Pool(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts VALUES (1, 100)")
	std := must.Get(sql.Open("pgx", db.URL()))(t)
	defer std.Close() //nolint:errcheck // nothing is lost
	c := startClient(t, pool, pglock.WithDefaultTTL(time.Hour))
	held, released, lost := mustAcquire(t, c, "held"), mustAcquire(t, c, "released"), mustAcquire(t, c, "lost")
	foreign := mustAcquire(t, startClient(t, elsewhere.Pool(t), pglock.WithDefaultTTL(time.Hour)), "held")
	must.Do(t, released.Release(t.Context()))
	must.Get(newAdmin(t, pool).Break(t.Context(), "lost", "stuck", lockadmin.BreakOptions{}))(t)

	var all []refusal
	store := fencedstore.New(pool)
	write := func(ctx context.Context, fenced fencedstore.Fenced, opts ...fencedstore.Option) error {
		return store.With(opts...).Write(ctx, fenced, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = 0")
			return errors.Join(err, errors.New("fn ran"))
		})
	}
	guard := func(ctx context.Context, fenced fencedstore.Fenced, opts ...fencedstore.Option) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := fencedstore.Guard(ctx, tx, fenced, opts...)
			return err
		})
	}
	guardSQL := func(ctx context.Context, fenced fencedstore.Fenced, opts ...fencedstore.Option) error {
		tx, err := std.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // already ended when committed
		if _, err := fencedstore.GuardSQL(ctx, tx, fenced, opts...); err != nil {
			return err
		}
		return tx.Commit()
	}
	for how, fenced := range map[string]func(context.Context, fencedstore.Fenced,
		...fencedstore.Option) error{"Write": write, "Guard": guard, "GuardSQL": guardSQL} {
		for _, b := range badNames {
			if f := (fencedstore.Fence{Lease: held, Resource: b.name}); b.name != "" { // that is the default
				all = append(all, argument(how+" resource "+b.what, "resource", b.value, b.rule,
					func(ctx context.Context) error { return fenced(ctx, f) }))
			}
		}
		all = append(all,
			argument(how+" without lease", "lease", "nil", "be a *pglock.Lease", func(ctx context.Context) error {
				return fenced(ctx, fencedstore.Fence{})
			}),
			argument(how+" without anything", "fenced", "nil", "be a *pglock.Lease", func(ctx context.Context) error {
				return fenced(ctx, nil)
			}),
			refusal{how + " released", func(ctx context.Context) error {
				return fenced(ctx, released)
			}, pglock.ErrReleased, nil},
			refusal{how + " of another database", func(ctx context.Context) error {
				return fenced(ctx, foreign)
			}, pglock.ErrWrongDatabase, []string{"held", db.Name()}},
			refusal{how + " lost", func(ctx context.Context) error {
				return fenced(ctx, lost)
			}, pglock.ErrLost, []string{"lost"}})
	}
	all = append(all,
		argument("Write without pool", "pool", "nil", "be a *pgxpool.Pool",
			func(ctx context.Context) error { return fencedstore.New(nil).Write(ctx, held, nil) }),
		argument("Write without function", "fn", "nil", "be a function", func(ctx context.Context) error {
			return store.Write(ctx, held, nil)
		}),
		argument("Write with a BEGIN of its own", "transaction options", "BeginQuery", "have neither",
			func(ctx context.Context) error {
				return write(ctx, held, fencedstore.WithTxOptions(pgx.TxOptions{BeginQuery: "begin"}))
			}),
		argument("Write in a read-only transaction", "access mode", "read only",
			"be read write: passing a fence writes", func(ctx context.Context) error {
				return write(ctx, held, fencedstore.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadOnly}))
			}),
		argument("Guard without transaction", "tx", "nil", "be a pgx.Tx", func(ctx context.Context) error {
			_, err := fencedstore.Guard(ctx, nil, held)
			return err
		}),
		argument("GuardSQL without transaction", "tx", "nil", "be a *sql.Tx", func(ctx context.Context) error {
			_, err := fencedstore.GuardSQL(ctx, nil, held)
			return err
		}))
	for _, l := range []struct {
		lease *pglock.Lease
		want  error
	}{{released, pglock.ErrReleased}, {lost, pglock.ErrLost}} {
		all = append(all,
			refusal{"Renew " + l.lease.Name(), hooks.Of(l.lease).Renew, l.want, nil},
			refusal{"Check " + l.lease.Name(), func(ctx context.Context) error {
				return ignore(l.lease.Check(ctx))
			}, l.want, nil},
			refusal{"Release " + l.lease.Name(), l.lease.Release, l.want, nil})
	}
	checkRefusals(t, conn, all)
}

func TestI11_ClosedClientRefusesEverythingAndChangesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t))
	l := mustAcquire(t, c, "held")
	must.Do(t, c.Close(t.Context()))
	closed := func(name string, call func(context.Context) error) refusal {
		return refusal{name, call, pglock.ErrClosed, nil}
	}
	checkRefusals(t, conn, []refusal{
		closed("TryAcquire", func(ctx context.Context) error { return ignore(c.TryAcquire(ctx, "new")) }),
		closed("Acquire", func(ctx context.Context) error { return ignore(c.Acquire(ctx, "new")) }),
		closed("Do", func(ctx context.Context) error { return c.Do(ctx, "new", fnRan) }),
		closed("AcquireAll", func(ctx context.Context) error { return ignore(c.AcquireAll(ctx, []string{"new"})) }),
		closed("Watch", func(ctx context.Context) error { return watchOnce(ctx, c, "new") }),
		{"Renew", hooks.Of(l).Renew, pglock.ErrReleased, nil},
		{"Release", l.Release, pglock.ErrReleased, nil},
		{"Check", func(ctx context.Context) error { return ignore(l.Check(ctx)) }, pglock.ErrReleased, nil},
	})
}
