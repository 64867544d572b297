package pglock

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
)

// Finding is one thing that the server can or cannot do for the locks.
type Finding struct {
	Item    string `json:"item"`
	OK      *bool  `json:"ok"` // nil where it depends on what is wanted
	Value   string `json:"value"`
	Meaning string `json:"meaning"`
}

// Diagnose asks the server what it can and cannot do for the locks: the version of the schema, the timeline and the epoch of
// tokens, settings that cost durability, transactions that stand in the way, and every guarded table. It changes nothing,
// needs no Client, and works where New refuses: on a standby, with a sequence that was altered, with a newer schema. Of the
// options WithSchema matters. The pool stays the caller's.
//
// Errors: ErrInvalid, ErrPermission, or the failure to connect; and ErrSchema (SchemaError) when the schema is missing or of
// another version, together with what could be found all the same: that, first of all.
func Diagnose(ctx context.Context, pool *pgxpool.Pool, opts ...Option) ([]Finding, error) {
	if pool == nil {
		return nil, &ArgumentError{"pool", "nil", "be a *pgxpool.Pool"}
	}
	config, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	pg := database{server.New(pool, config.schema, nil, ErrClosed)}
	defer pg.Close()
	_, err = pg.start(ctx, config.schema)
	findings := foundAtStart(config.schema, err)
	if findings == nil {
		return nil, err
	}
	var other *SchemaError
	if errors.As(err, &other) && other.Have == 0 {
		return findings, other
	}
	err = pg.rows(ctx, pg.Queries.Diagnose, nil, func(rows pgx.Rows) error {
		var f Finding
		err := rows.Scan(&f.Item, &f.OK, &f.Value, &f.Meaning)
		findings = append(findings, f)
		return err
	})
	switch {
	case other != nil && (err == nil || protocol.State(err) != ""): // another version may have another diagnosis, or none
		return findings, other
	case err != nil:
		return nil, fmt.Errorf("pglock: diagnose: %w", ErrorFromSQL(err, "", 0))
	}
	return findings, nil
}

// foundAtStart is what a client that starts with err would find; nil where err says nothing of schema and server.
func foundAtStart(schema string, err error) []Finding {
	yes, no := true, false
	fits := Finding{"schema", &yes, fmt.Sprintf("%s, version %d", schema, SchemaVersion), "The version that this library needs."}
	var other *SchemaError
	switch {
	case errors.As(err, &other):
		f := Finding{"schema", &no, fmt.Sprintf("%s, version %d", schema, other.Have), ""}
		switch {
		case other.Have == 0:
			f.Value, f.Meaning = schema+", missing", "There are no locks here yet, and nothing more can be found out."
		case other.Have < other.Need:
			f.Meaning = fmt.Sprintf("Programs with this library, which needs version %d, do not start. Nothing more can be found out.", other.Need)
		default:
			f.Meaning = fmt.Sprintf("Programs with this library, which knows version %d, do not start.", other.Need)
		}
		return []Finding{f}
	case errors.Is(err, ErrReadOnly):
		return []Finding{fits, {"server", &no, "read-only", "It is a standby, or the session is read-only: locks are decided on the primary alone. " +
			"Ask the primary for the timeline."}}
	case err == nil, errors.Is(err, ErrSchema): // of a sequence that was altered the server tells more
		return []Finding{fits, {"server", &yes, "takes writes", "A standby would not: locks are decided on the primary alone."}}
	}
	return nil
}
