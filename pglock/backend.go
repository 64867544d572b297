package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
)

// backend is what a client's loops need from the database. Package server implements it; the tests of timers
// use a fake. The second group of methods is for the heartbeat, and after it for Close. within is how long getting a
// connection may take.
type backend interface {
	OnAbandoned(request func(protocol.Request, protocol.Answer, error),
		released func(protocol.Claim, protocol.Ending, error),
		handedOver func(protocol.Bequest, protocol.Succession, error))
	OnTrouble(t server.Trouble)
	Acquire(ctx context.Context, a protocol.Request) (protocol.Answer, error)
	Renew(ctx context.Context, c protocol.Claim) (protocol.Verdict, error)
	Check(ctx context.Context, c protocol.Claim) (protocol.Remains, error)
	Release(ctx context.Context, c protocol.Claim, announce bool) (protocol.Ending, error)
	HandOver(ctx context.Context, c protocol.Claim, to string, look bool) (protocol.Succession, error)
	Announce(ctx context.Context, names []string, slots []*int) error
	Notify(ctx context.Context, channel, payload string) error
	Timeline(ctx context.Context) (since time.Duration, changed bool, err error)
	Watch(ctx context.Context, name string, lasting time.Duration) (infos []LockInfo, channel string, err error)
	Listen(ctx context.Context) (listener.Conn, error)
	Drain(ctx context.Context)
	Close()

	RenewAll(ctx context.Context, within time.Duration, s protocol.Session,
		claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error)
	Look(ctx context.Context, within time.Duration, s protocol.Session, nested []int64) (map[int64]protocol.Sighting,
		error)
	RenewWaiting(ctx context.Context, within time.Duration, c protocol.Claim, wait time.Duration) (protocol.Verdict,
		error)
	Sign(ctx context.Context, within time.Duration, s protocol.Session) error
	OwnTickets(ctx context.Context, s protocol.Session, tickets []int64) ([]protocol.RequestID, error)
	TakeBack(ctx context.Context, s protocol.Session, spend bool, requests []protocol.RequestID) ([]protocol.TakenBack,
		error)
	ReleaseAll(ctx context.Context, claims []protocol.Claim) ([]protocol.Ending, error)
	AnnounceOwn(ctx context.Context, names []string, slots []*int) error
	AnnounceUnconfirmed(ctx context.Context, names []string, slots []*int) error
	EndSession(ctx context.Context, s protocol.Session) error
	Sweep(ctx context.Context, every time.Duration) (swept, more bool, err error)
	CloseOwn()
}

// database is a server that can also describe locks to people.
type database struct{ *server.Server }

// start checks that the schema fits this library.
func (d database) start(ctx context.Context, schema string) (databaseID uuid.UUID, err error) {
	found, err := start(ctx, d.Queries, d.Query, schema)
	if misfit, is := errors.AsType[*SchemaError](err); is {
		at := d.Pool().Config().ConnConfig
		misfit.Database = fmt.Sprintf("database %q of %s", server.Database(at),
			strings.Join(server.Addresses(at), ", "))
	}
	if err != nil {
		return uuid.Nil, err
	}
	if found.isolation != "read committed" {
		d.BeginExplicitly()
	}
	return uuid.Parse(found.id)
}

// started is what the server reports when a client starts.
type started struct {
	id, isolation string
	version       int // of the schema: SchemaVersion, or a newer one that serves this library too
}

func start(
	ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error, schema string,
) (started, error) {
	var found started
	var servesFrom int
	var readOnly, sequenceOK bool
	err := query(ctx, protocol.Step{SQL: queries.Start, Scan: func(rows pgx.Rows) error {
		return rows.Scan(&found.version, &found.id, &found.isolation, &readOnly, &sequenceOK, &servesFrom)
	}})
	switch state := protocol.State(err); {
	case state == "3F000" || state == "42883": // no such schema, no such function
		return started{}, &SchemaError{Schema: schema, Have: 0, Need: SchemaVersion}
	case err != nil:
		return started{}, errorFromSQL(err, "", 0)
	case found.version < SchemaVersion || servesFrom > SchemaVersion:
		return started{}, &SchemaError{Schema: schema, Have: found.version, Need: SchemaVersion}
	case readOnly:
		return found, fmt.Errorf("%w: %s", ErrReadOnly, writable)
	case !sequenceOK:
		return found, fmt.Errorf("%w: sequence fencing_token_seq was altered and may hand out tokens in the wrong "+
			"order: ALTER SEQUENCE %s INCREMENT 1 MAXVALUE 8796093022207 CACHE 1 NO CYCLE", ErrSchema,
			pgx.Identifier{schema, "fencing_token_seq"}.Sanitize())
	}
	return found, nil
}

// Watch returns the lock's state, and makes the server announce its changes on a channel for a while.
func (d database) Watch(ctx context.Context, name string, lasting time.Duration) (infos []LockInfo, channel string,
	err error) {
	err = d.Query(ctx, protocol.Step{SQL: d.Queries.Watch, Args: []any{name, protocol.Interval(lasting)},
		Scan: func(rows pgx.Rows) error {
			i, err := scanLockInfo(rows, &channel, nil)
			infos = append(infos, i)
			return err
		}})
	return infos, channel, err
}
