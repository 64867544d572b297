package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/lockadmin"
)

const (
	patience = 5 * time.Second       // with a statement that must answer
	moment   = 50 * time.Millisecond // in which a statement that must wait, or a notification, would have come
	tidying  = 5 * time.Second       // for what must be removed whatever has happened
	prefix   = "pglock_trial_"       // of the schema, which the trial makes and drops
)

// Try tries each feature on the server, in a schema of its own, and tells what is there and what is not. It needs
// CREATE on the database, and up to three connections. An error says that nothing could be tried.
func Try(ctx context.Context, config *pgx.ConnConfig) ([]lockadmin.Finding, error) {
	return try(ctx, config, checks)
}

func try(ctx context.Context, config *pgx.ConnConfig, checks []check) (findings []lockadmin.Finding, err error) {
	t := &trial{config: config, schema: fmt.Sprintf("%s%08x", prefix, rand.Uint32())}
	defer t.close(ctx)
	conn, err := t.conn(ctx, a)
	if err != nil {
		return nil, err
	}
	version, _, _ := strings.Cut(t.answer(ctx, conn, "SELECT version()"), " on ") // which processor does not matter
	if err := conn.PgConn().Exec(ctx, "CREATE SCHEMA "+t.schema).Close(); err != nil {
		if ctx.Err() != nil { // it may be made all the same
			err = errors.Join(err, t.drop(ctx))
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, t.drop(ctx)) }()
	findings = append(findings, lockadmin.Finding{Item: "engine", Severity: lockadmin.SeverityNote, Value: version,
		Meaning: "What it calls itself. The connections of the trial may have led to one node: if yours has several, " +
			"try each, and a name that leads to all."})
	for _, c := range checks {
		f := lockadmin.Finding{Item: c.item, Severity: lockadmin.SeverityOK, Value: "as PostgreSQL does it",
			Meaning: c.why}
		if fault := t.run(ctx, c); fault != "" {
			f.Severity, f.Value, f.Meaning = lockadmin.SeverityWarning, "not as PostgreSQL does it", fault+" "+c.why
			if c.late {
				f.Severity = lockadmin.SeverityNote
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		findings = append(findings, f)
	}
	return findings, nil
}

type trial struct {
	config *pgx.ConnConfig
	schema string
	conns  [3]*pgx.Conn

	last    int64              // number that an answer had
	waiting chan string        // the answer of the statement that waits
	giveUp  context.CancelFunc // of that statement
}

func (t *trial) conn(ctx context.Context, n int) (_ *pgx.Conn, err error) {
	if t.conns[n] == nil || t.conns[n].IsClosed() {
		ctx, cancel := context.WithTimeout(ctx, tidying)
		defer cancel()
		t.conns[n], err = pgx.ConnectConfig(ctx, t.config)
	}
	return t.conns[n], err
}

// close ends all connections. What they have not committed is undone.
func (t *trial) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
	defer cancel()
	for n, conn := range t.conns {
		if conn != nil {
			_ = conn.Close(ctx) // at worst the server notices later
			t.conns[n] = nil
		}
	}
}

// drop removes the schema, over a new connection: the old ones may have failed.
func (t *trial) drop(ctx context.Context) error {
	t.close(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
	defer cancel()
	conn, err := t.conn(ctx, a)
	if err == nil {
		err = conn.PgConn().Exec(ctx, "DROP SCHEMA IF EXISTS "+t.schema+" CASCADE").Close()
	}
	if err != nil {
		return fmt.Errorf("schema %s is left: drop it: %w", t.schema, err)
	}
	return nil
}

// run says what is wrong with a feature; empty: nothing. After a fault the connections may be in any state.
func (t *trial) run(ctx context.Context, c check) string {
	t.last, t.waiting = -1, nil
	for _, s := range c.steps {
		got, want := t.step(ctx, s)
		if got == want {
			continue
		}
		if t.waiting != nil {
			t.giveUp()
			<-t.waiting
		}
		t.close(ctx)
		sql := strings.Join(strings.Fields(strings.ReplaceAll(s.sql, "@.", "")), " ")
		if s.want == hears {
			return fmt.Sprintf("It heard %s, and not %s.", cmp.Or(got, "nothing"), cmp.Or(want, "nothing"))
		}
		return fmt.Sprintf("%q: %s, and not %s.", sql, got, want)
	}
	return ""
}

// step takes a step, and says what came and what had to come.
func (t *trial) step(ctx context.Context, s step) (got, want string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.sql == answer { // a goroutine has the connection
		select {
		case got = <-t.waiting:
			t.waiting = nil
		case <-ctx.Done():
			got = "no answer"
		}
		return got, s.want
	}
	conn, err := t.conn(ctx, s.on)
	if err != nil {
		return "no connection: " + err.Error(), "one"
	}
	sql := strings.ReplaceAll(s.sql, "@", t.schema)
	switch {
	case s.want == hears:
		return t.hear(ctx, conn, s.sql != ""), s.sql
	case s.want == waits:
		return t.start(ctx, conn, sql), waits
	}
	got = t.answer(ctx, conn, sql)
	if strings.HasPrefix(got, failure+s.want+" ") || s.want == gone && conn.IsClosed() {
		return s.want, s.want
	}
	switch number, err := strconv.ParseInt(got, 10, 64); {
	case s.want == anything && !strings.HasPrefix(got, failure):
		return got, got
	case s.want == anything:
		return got, "done"
	case s.want == greater && err == nil && number > t.last, s.want == rising && err == nil && number >= t.last:
		t.last = number
		return got, got
	case s.want == greater || s.want == rising:
		return got, fmt.Sprint("above ", t.last)
	}
	return got, s.want
}

// start sends a statement that must wait for what another connection does next.
func (t *trial) start(ctx context.Context, conn *pgx.Conn, sql string) string {
	answered := make(chan string, 1)
	life, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	go func() {
		defer cancel()
		answered <- t.answer(life, conn, sql)
	}()
	select {
	case got := <-answered:
		return got
	case <-time.After(moment):
		t.waiting, t.giveUp = answered, cancel
		return waits
	}
}

func (t *trial) hear(ctx context.Context, conn *pgx.Conn, patient bool) string {
	if !patient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, moment)
		defer cancel()
	}
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		return ""
	}
	return n.Payload
}

// The answers that are an error of the server, or none at all, begin so where they are shown.
const failure = "error "

// answer is the first row of a statement's answer, else its command tag, else the SQLSTATE of its error.
func (t *trial) answer(ctx context.Context, conn *pgx.Conn, sql string) string {
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused):
		return failure + refused.Code + " " + refused.Message
	case err != nil && ctx.Err() != nil:
		return failure + "no answer"
	case err != nil:
		return failure + err.Error()
	case len(results) == 0:
		return "no result"
	case len(results[0].Rows) == 0:
		return results[0].CommandTag.String()
	}
	return string(bytes.Join(results[0].Rows[0], []byte(" ")))
}
