package pglock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// oneAfterAnother runs each statement, of one row, as a transaction of its own, all in one round trip and without BEGIN and
// COMMIT. The error is that of the first: what goes wrong after it undoes nothing.
//
// It prepares the statements under names of its own: a name that is the statement's text would be preferred by every later
// query of that text, also by one that must not rely on names.
func oneAfterAnother(ctx context.Context, conn *pgx.Conn, statements ...statement) (err error) {
	p := conn.PgConn()
	names := make([]string, len(statements))
	defer func() {
		if statementLost(err) {
			for _, name := range names {
				_ = conn.Deallocate(ctx, name)
			}
		}
	}()
	args := make([][][]byte, len(statements))
	for i, s := range statements {
		names[i] = ownName(s.sql)
		sd, err := conn.Prepare(ctx, names[i], s.sql)
		if err != nil {
			return err
		}
		if args[i], err = texts(conn.TypeMap(), sd, s.args); err != nil {
			return err
		}
	}
	pipeline := p.StartPipeline(ctx)
	for i := range statements {
		pipeline.SendQueryPrepared(names[i], args[i], nil, nil)
		pipeline.SendPipelineSync()
	}
	err = pipeline.Flush()
	if err == nil {
		err = statements[0].receive(conn, pipeline)
	}
	for i := 1; i < len(statements) && err == nil; i++ {
		_ = statements[i].receive(conn, pipeline)
	}
	_ = pipeline.Close() // it repeats an error that was read, or comes after the first commit
	return err
}

// ownName is under what a statement is prepared: the same for the same text, and not the text.
func ownName(sql string) string {
	sum := sha256.Sum256([]byte(sql))
	return "pglock_" + hex.EncodeToString(sum[:12])
}

// texts gives the arguments in PostgreSQL's text format.
func texts(m *pgtype.Map, sd *pgconn.StatementDescription, args []any) ([][]byte, error) {
	encoded := make([][]byte, len(args))
	for i, a := range args {
		var err error
		if encoded[i], err = m.Encode(sd.ParamOIDs[i], pgx.TextFormatCode, a, nil); err != nil {
			return nil, fmt.Errorf("encode argument %d: %w", i+1, err)
		}
	}
	return encoded, nil
}

// receive reads the rows and the end of the transaction.
func (o statement) receive(conn *pgx.Conn, p *pgconn.Pipeline) error {
	results, err := p.GetResults()
	if err != nil {
		return err
	}
	reader, ok := results.(*pgconn.ResultReader)
	if !ok {
		return errors.New("the server answered something else than a row")
	}
	failed := readAll(pgx.RowsFromResultReader(conn.TypeMap(), reader), o.scan)
	if _, err := p.GetResults(); err != nil { // the sync: committed
		return err
	}
	return failed
}
