package protocol

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Patience limits every statement: on a connection that has died silently, a statement would hold its call until its
// ctx ends.
const Patience = 10 * time.Second

// goodbye limits the polite end of a connection that leads to a standby.
const goodbye = 100 * time.Millisecond

// Step is one statement, which is a whole transaction.
type Step struct {
	SQL  string
	Args []any
	Scan func(pgx.Rows) error // gets each row; nil ignores the rows

	// Limit is how long the server may work on it: it also ends what its caller has left. A lower statement_timeout of
	// the session stays. 0: no limit of this step's own.
	Limit time.Duration
	// Wait is how long it may wait for somebody's lock. 0: as long as the session lets it.
	Wait time.Duration
}

// Lower is the statement that lowers a timeout until the transaction ends. A lower one of the session stays.
func Lower(timeout string, to time.Duration) string {
	return fmt.Sprintf(`SELECT pg_catalog.set_config('%[2]s', '%[1]d', true)
	WHERE pg_catalog.current_setting('%[2]s') OPERATOR(pg_catalog.=) '0'
		OR pg_catalog.current_setting('%[2]s')::pg_catalog.interval OPERATOR(pg_catalog.>) '%[1]d ms'`,
		Milliseconds(to), timeout)
}

// EndIdle makes the server end a transaction that is idle for two seconds: a tool that stands still, as one that is
// stopped or whose machine sleeps, would keep for as long what it has locked.
var EndIdle = Lower("idle_in_transaction_session_timeout", 2*time.Second)

// Milliseconds is d as a timeout of the server's, from one millisecond to the greatest that it knows, 24 days.
func Milliseconds(d time.Duration) int64 { return min(max(1, d.Milliseconds()), math.MaxInt32) }

// before are the statements that go before the step's own, in its transaction; none if it is a transaction by itself.
func (s Step) before(explicit bool) (all []string) {
	if explicit || s.Limit > 0 || s.Wait > 0 {
		all = append(all, "begin isolation level read committed")
	}
	if s.Limit > 0 {
		all = append(all, Lower("statement_timeout", s.Limit))
	}
	if s.Wait > 0 {
		all = append(all, Lower("lock_timeout", s.Wait))
	}
	return all
}

// Executor runs steps on connections, each at READ COMMITTED whatever the session's default. It is safe for
// concurrent use.
type Executor struct {
	// Unnamed hears that a name was lost, so many times in a row, and for how long statements go without names; nil:
	// nobody does.
	Unnamed func(count int, lasting time.Duration, err error)
	// Watch begins when steps are sent over a connection. answered ends it, and returns their error, or a better one;
	// nil: nobody watches.
	Watch func(ctx context.Context, conn *pgx.Conn) (answered func(error) error)

	// explicit says that the sessions' default isolation is not READ COMMITTED; then statements travel between BEGIN
	// and COMMIT.
	explicit atomic.Bool
	names    names
}

// BeginExplicitly makes every step state its isolation level. Otherwise the executor finds out by itself, at the cost
// of one refusal.
func (e *Executor) BeginExplicitly() { e.explicit.Store(true) }

// Run runs the first step and, after its commit, the others, all in one round trip. The error is that of the first
// step: a failure after it undoes nothing. The others go along only if they surely reach the same session, and so not
// where statements have no names. A connection on which nothing may be written is closed.
func (e *Executor) Run(ctx context.Context, conn *pgx.Conn, first Step, along ...Step) error {
	if err := CheckEncoding(conn); err != nil {
		return err
	}
	_ = Unconfirmed(conn) // of a commit that is not ours
	for {
		explicit, named := e.explicit.Load(), e.names.usable(settingsOf(conn).mode)
		if !named {
			along = nil
		}
		err := e.watched(ctx, conn, func() error {
			return send(ctx, conn, explicit, named, append([]Step{first}, along...))
		})
		switch {
		case !explicit && State(err) == StateIsolation: // nothing was done
			e.explicit.Store(true)
			continue
		case named && NameLost(err): // nor here
			if count, lasting := e.names.lost(); e.Unnamed != nil {
				e.Unnamed(count, lasting, err)
			}
			continue
		case named && err == nil:
			e.names.worked()
		}
		if ReadOnly(err) { // a standby: another connection may reach the primary
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
			_ = conn.Close(closing)
			cancel()
		}
		if Unconfirmed(conn) && err == nil {
			return ErrUnconfirmed
		}
		return err
	}
}

func (e *Executor) watched(ctx context.Context, conn *pgx.Conn, do func() error) error {
	if e.Watch == nil {
		return do()
	}
	answered := e.Watch(ctx, conn)
	return answered(do())
}

// send sends all steps at once, and reads their answers.
func send(ctx context.Context, conn *pgx.Conn, explicit, named bool, steps []Step) (err error) {
	if tracer := settingsOf(conn).tracer; tracer != nil {
		for _, s := range steps {
			traced := tracer.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: s.SQL, Args: s.Args})
			defer func() { tracer.TraceQueryEnd(traced, conn, pgx.TraceQueryEndData{Err: err}) }()
		}
	}
	prepared := make([]*pgconn.StatementDescription, len(steps)) // nil: without a name
	if named {
		defer func() {
			if NameLost(err) || State(err) == "0A000" { // the schema has changed since the plan was made
				for _, s := range steps {
					_ = conn.Deallocate(ctx, ownName(s.SQL))
				}
			}
		}()
		for i, s := range steps {
			if prepared[i], err = conn.Prepare(ctx, ownName(s.SQL), s.SQL); err != nil {
				return err
			}
		}
	}
	built := make([]pgx.ExtendedQueryBuilder, len(steps))
	for i, s := range steps {
		if err := built[i].Build(conn.TypeMap(), prepared[i], s.Args); err != nil {
			return err
		}
	}
	defer rollBack(ctx, conn)
	p := conn.PgConn().StartPipeline(ctx)
	for i, s := range steps {
		before := s.before(explicit)
		for _, sql := range before {
			p.SendQueryParams(sql, nil, nil, nil, nil)
		}
		if b := &built[i]; named {
			p.SendQueryStatement(prepared[i], b.ParamValues, b.ParamFormats, b.ResultFormats)
		} else {
			p.SendQueryParams(s.SQL, b.ParamValues, nil, b.ParamFormats, b.ResultFormats)
		}
		if len(before) > 0 {
			p.SendQueryParams("commit", nil, nil, nil, nil)
		}
		p.SendPipelineSync()
	}
	if err = p.Flush(); err == nil {
		err = steps[0].receive(conn, p, explicit)
	}
	for _, s := range steps[1:] {
		if err != nil || s.receive(conn, p, explicit) != nil {
			break
		}
	}
	_ = p.Close() // it repeats an error that was already read, or comes after the first commit
	return err
}

// receive reads the rows of one step, and the end of its transaction. A server that logs how long a COMMIT took may
// heed a cancellation after it: that undoes nothing.
func (s Step) receive(conn *pgx.Conn, p *pgconn.Pipeline, explicit bool) (failed error) {
	own, committed := len(s.before(explicit)), false
	for at := 0; ; at++ {
		results, err := p.GetResults()
		if committed && Refused(err) {
			continue
		} else if err != nil {
			return err
		}
		reader, ok := results.(*pgconn.ResultReader)
		switch {
		case !ok: // the sync: committed
			return failed
		case at == own && s.Scan != nil:
			err = readAll(pgx.RowsFromResultReader(conn.TypeMap(), reader), s.Scan)
		default: // without rows
			var tag pgconn.CommandTag
			tag, err = reader.Close()
			committed = at > own && tag.String() == "COMMIT"
		}
		failed = cmp.Or(failed, err)
	}
}

func readAll(rows pgx.Rows, scan func(pgx.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// rollBack keeps a connection whose transaction has failed. If that fails it closes the connection, which rolls back
// too.
func rollBack(ctx context.Context, conn *pgx.Conn) {
	if conn.PgConn().TxStatus() == 'E' {
		_, _ = conn.Exec(ctx, "rollback")
	}
}

// settings are those of a connection's configuration that concern us. They are kept with the connection, because pgx
// copies the whole configuration, TLS included, on every request for it.
type settings struct {
	mode   pgx.QueryExecMode
	tracer pgx.QueryTracer
}

const settingsKey = "pglock.settings"

func settingsOf(conn *pgx.Conn) settings {
	data := conn.PgConn().CustomData()
	known, ok := data[settingsKey].(settings)
	if !ok {
		config := conn.Config()
		known = settings{config.DefaultQueryExecMode, config.Tracer}
		data[settingsKey] = known
	}
	return known
}

// ownName is the name under which a statement is prepared: the same for the same text, but not the text itself. Every
// later query of that text would prefer a name like that, even one that must not rely on names.
func ownName(sql string) string {
	if name, known := ownNames.Load(sql); known {
		return name.(string)
	}
	sum := sha256.Sum256([]byte(sql))
	name := "pglock_" + hex.EncodeToString(sum[:12])
	ownNames.Store(sql, name)
	return name
}

// ownNames holds the name of each statement ever sent: some thirty per schema.
var ownNames sync.Map
