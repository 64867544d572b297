package lockadmin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// Finding is one thing that the server can or cannot do for the locks.
type Finding struct {
	Item string `json:"item"`
	// SeverityOK; SeverityWarning: somebody should look at it; or SeverityNote: it depends on your needs
	Severity Severity `json:"severity"`
	Value    string   `json:"value"`
	Meaning  string   `json:"meaning"`
}

// Diagnose asks the server what it can and cannot do for the locks: the schema's version, the timeline and the epoch
// of tokens, settings that cost durability, standbys and whether the pool would find them, transactions that stand in
// the way, and every guarded table. It changes nothing, needs no Admin, and works where New refuses: on a standby, with
// an altered sequence, with a too new schema. The pool stays the caller's.
//
// Errors: pglock.ErrInvalid, ErrPermission, or the failure to connect. If the schema is missing or has another
// version, the error is ErrSchema (SchemaError), together with the findings that are still possible; the first of
// them is about the schema.
func Diagnose(ctx context.Context, pool *pgxpool.Pool, opts ...Option) ([]Finding, error) {
	c, err := newConfig(pool, opts)
	if err != nil {
		return nil, err
	}
	db := server.NewPlain(pool, c.schema)
	version, err := start(ctx, db, c.schema)
	findings := foundAtStart(c.schema, version, err)
	if findings == nil {
		return nil, failure.At(ctx, err, "lockadmin: diagnose")
	}
	var other *pglock.SchemaError
	if errors.As(err, &other) && other.Have == 0 {
		return findings, other
	}
	config := pool.Config().ConnConfig
	hosts, chooses := len(server.Addresses(config)), config.ValidateConnect != nil // target_session_attrs
	more, err := server.Rows(ctx, db, db.Queries.Diagnose, []any{hosts, chooses}, scanFinding)
	findings = append(findings, more...)
	switch {
	// another version may have another diagnosis, or none
	case other != nil && (err == nil || protocol.State(err) != ""):
		return findings, other
	case err != nil:
		return nil, failed(ctx, err, "diagnose")
	}
	return findings, nil
}

func scanFinding(rows pgx.Rows) (f Finding, err error) {
	var ok *bool
	err = rows.Scan(&f.Item, &ok, &f.Value, &f.Meaning)
	switch {
	case ok == nil:
		f.Severity = SeverityNote
	case *ok:
		f.Severity = SeverityOK
	default:
		f.Severity = SeverityWarning
	}
	return f, err
}

// foundAtStart is what err says to a client that starts; nil if err says nothing about schema and server.
func foundAtStart(schema string, version int, err error) []Finding {
	fits := Finding{"schema", SeverityOK, fmt.Sprintf("%s, version %d", schema, version),
		"The version that this library needs."}
	if version > pglock.SchemaVersion {
		fits.Meaning = fmt.Sprintf("Newer than this library, which needs version %d, but it serves this library too.",
			pglock.SchemaVersion)
	}
	var other *pglock.SchemaError
	switch {
	case errors.As(err, &other):
		f := Finding{"schema", SeverityWarning, fmt.Sprintf("%s, version %d", schema, other.Have), ""}
		switch {
		case other.Have == 0:
			f.Value, f.Meaning = schema+", missing", "There are no locks here yet, and nothing more can be found out."
		case other.Have < other.Need:
			f.Meaning = fmt.Sprintf("Programs with this library, which needs version %d, do not start. Nothing more "+
				"can be found out.", other.Need)
		default:
			f.Meaning = fmt.Sprintf("Programs with this library, which knows version %d, do not start.", other.Need)
		}
		return []Finding{f}
	case errors.Is(err, pglock.ErrReadOnly):
		return []Finding{fits, {"server", SeverityWarning, "read-only", "It is a standby, or the session is " +
			"read-only: locks are decided on the primary alone. Ask the primary for the timeline."}}
	case err == nil, errors.Is(err, pglock.ErrSchema): // the server itself says more about an altered sequence
		return []Finding{fits, {"server", SeverityOK, "takes writes", "A standby would not: locks are decided on the " +
			"primary alone."}}
	}
	return nil
}
