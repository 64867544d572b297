package pglock

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// step is a statement of one row, with its arguments as text, and what reads the first columns of that row.
type step struct {
	sql  string
	args []string
	read func(scan func(...any) error) error
}

// oneAfterAnother runs each statement as a transaction of its own, all in one round trip and without BEGIN and COMMIT. The
// error is that of the first: what goes wrong after it undoes nothing.
func oneAfterAnother(ctx context.Context, conn *pgx.Conn, steps ...step) error {
	var prepared []*pgconn.StatementDescription
	for _, s := range steps {
		sd, err := conn.Prepare(ctx, s.sql, s.sql) // once for each connection
		if err != nil {
			return err
		}
		prepared = append(prepared, sd)
	}
	p := conn.PgConn().StartPipeline(ctx)
	for i, s := range steps {
		args := make([][]byte, len(s.args))
		for n, a := range s.args {
			args[n] = []byte(a)
		}
		p.SendQueryPrepared(prepared[i].Name, args, nil, nil)
		p.SendPipelineSync()
	}
	err := p.Flush()
	if err == nil {
		err = steps[0].receive(conn, p)
	}
	for i := 1; i < len(steps) && err == nil; i++ {
		_ = steps[i].receive(conn, p)
	}
	_ = p.Close() // it repeats an error that was read, or comes after the first commit
	return err
}

// receive reads the row and the end of the transaction.
func (s step) receive(conn *pgx.Conn, p *pgconn.Pipeline) error {
	results, err := p.GetResults()
	if err != nil {
		return err
	}
	rows, ok := results.(*pgconn.ResultReader)
	if !ok {
		return errors.New("the server answered something else than a row")
	}
	var failed error
	for rows.NextRow() {
		values, fields := rows.Values(), rows.FieldDescriptions()
		failed = s.read(func(targets ...any) error {
			for i, t := range targets {
				if err := conn.TypeMap().Scan(fields[i].DataTypeOID, fields[i].Format, values[i], t); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if _, err := rows.Close(); err != nil {
		return err
	}
	if _, err := p.GetResults(); err != nil { // the sync: committed
		return err
	}
	return failed
}
