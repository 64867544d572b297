//go:build unix

package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// slotName is the replication slot from which the order of commits is read. It survives crashes of the server.
const slotName = "chaos"

// follower reads the commits of one primary in their order, as long as it lives, over its restarts.
type follower struct {
	url    string
	commit func(history.Commit)
	fail   func(error) // called once, for what a new connection does not mend
	last   uint64      // position of the last commit: after a crash the server may repeat some
}

// decodeError is an answer that we do not understand.
type decodeError struct{ error }

// makeSlot begins the order: commits from now on are reported.
func makeSlot(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`,
		slotName) // a server that leads again may have kept it
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slotName)
	}
	if err != nil {
		return fmt.Errorf("cluster: make the replication slot: %w", err)
	}
	return nil
}

// follow runs until ctx ends, and connects again whenever the server has gone.
func (f *follower) follow(ctx context.Context) {
	for ctx.Err() == nil {
		var misread *decodeError
		if err := f.once(ctx); errors.As(err, &misread) {
			f.fail(err)
			return
		}
		pause(ctx, 20*time.Millisecond) // the server was restarted, most likely
	}
}

func (f *follower) once(ctx context.Context) error {
	config, err := pgconn.ParseConfig(f.url)
	if err != nil {
		return err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["datestyle"] = "ISO"
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["application_name"] = "chaos order"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(brief)
	}()
	conn.Frontend().SendQuery(&pgproto3.Query{String: fmt.Sprintf(
		`START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '1', publication_names 'chaos')`, slotName)})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}
	d := decoder{relations: make(map[uint32]relation)}
	var seen uint64 // everything before was handled
	confirmed := time.Now()
	for {
		brief, cancel := context.WithTimeout(ctx, time.Second)
		m, err := conn.ReceiveMessage(brief)
		cancel()
		asked := false
		switch {
		case err != nil && !pgconn.Timeout(err) || ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case err == nil:
			if asked, err = f.heed(m, &d, &seen); err != nil {
				return err
			}
		}
		if asked || time.Since(confirmed) > time.Second {
			confirmed = time.Now()
			if err := confirm(conn, seen); err != nil {
				return err
			}
		}
	}
}

// heed takes one message, and reports whether the server asks how far we are. A server that shuts down waits for the
// answer.
func (f *follower) heed(m pgproto3.BackendMessage, d *decoder, seen *uint64) (asked bool, err error) {
	data, is := m.(*pgproto3.CopyData)
	if !is {
		if e, is := m.(*pgproto3.ErrorResponse); is {
			return false, pgconn.ErrorResponseToPgError(e)
		}
		return false, nil
	}
	switch kind := data.Data[0]; {
	case kind == 'k' && len(data.Data) >= 18:
		if d.commit == nil {
			*seen = max(*seen, binary.BigEndian.Uint64(data.Data[1:]))
		}
		return data.Data[17] == 1, nil
	case kind == 'w' && len(data.Data) >= 25:
		commit, err := d.message(data.Data[25:])
		if err != nil {
			return false, &decodeError{err}
		}
		if commit == nil {
			return false, nil
		}
		*seen = max(*seen, commit.Position)
		if commit.Position > f.last {
			f.last = commit.Position
			f.commit(*commit)
		}
	}
	return false, nil
}

// confirm tells the server that we have handled everything before the position.
func confirm(conn *pgconn.PgConn, position uint64) error {
	status := []byte{'r'}
	for range 3 {
		status = binary.BigEndian.AppendUint64(status, position)
	}
	status = binary.BigEndian.AppendUint64(status, uint64(time.Since(sincePostgresEpoch(0)).Microseconds()))
	conn.Frontend().Send(&pgproto3.CopyData{Data: append(status, 0)})
	return conn.Frontend().Flush()
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
