package lockadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// HistoryLevel says which tenures the history has.
type HistoryLevel string

// The levels of the history.
const (
	// those that ended without their holder: taken over, broken, or expired and pruned
	HistoryLosses HistoryLevel = "losses"
	HistoryAll    HistoryLevel = "all" // also those that their holder released or handed over
)

// How long the history may be kept, and is by default.
const (
	DefaultKeep = 90 * 24 * time.Hour
	MinKeep     = 24 * time.Hour
	MaxKeep     = 36525 * 24 * time.Hour
)

// HistorySettings says what the history has. Times are the server's, in UTC.
type HistorySettings struct {
	Level HistoryLevel `json:"level"`
	// older events are removed, a thousand at a time, by clients and by Prune
	Keep   time.Duration `json:"-"`
	Since  time.Time     `json:"since,omitzero"`  // of HistoryAll: since when every tenure that ends is in it
	Pruned time.Time     `json:"pruned,omitzero"` // what ended before may have been removed; zero: nothing was
}

// MarshalJSON writes durations in milliseconds.
func (s HistorySettings) MarshalJSON() ([]byte, error) {
	type plain HistorySettings
	return json.Marshal(struct {
		plain
		Keep int64 `json:"keep_ms"`
	}{plain(s), s.Keep.Milliseconds()})
}

// HistoryChange says what SetHistory changes: not the level if Level is "", and not the time if Keep is 0.
type HistoryChange struct {
	Level HistoryLevel
	Keep  time.Duration // for how long the history is kept, from MinKeep to MaxKeep; at first DefaultKeep, 90 days
	// Actor names the person for the history, in at most pglock.MaxHolderBytes bytes. "": "host/program[pid]".
	Actor string
}

// HistorySettings tells what the history has. The database user needs the role pglock_admin. Errors are those of Locks.
func (a *Admin) HistorySettings(ctx context.Context) (HistorySettings, error) {
	s, err := a.historySettings(ctx)
	return s, failed(ctx, err, "read the settings of the history")
}

// SetHistory changes which tenures the history has, and for how long it is kept, for every program of the database. It
// leaves alone what the change does not name, and returns the settings. It writes an event of EventLevel.
//
// A change of the level needs the table of locks for a moment. It waits for those who write to the table for at most a
// tenth of a second, while others queue behind it, and then tries again until ctx ends. So it does with those who have
// locked the record of the installation. The database user needs the role pglock_admin.
//
// Errors: ErrInUse, pglock.ErrInvalid, ErrPermission, ErrReadOnly, ctx's error, or the connection's failure.
func (a *Admin) SetHistory(ctx context.Context, c HistoryChange) (HistorySettings, error) {
	c.Actor = cmp.Or(c.Actor, argument.Process(pglock.MaxHolderBytes))
	if err := cmp.Or(refuse.Text("actor", c.Actor, pglock.MaxHolderBytes),
		refuse.If(c.Level != "" && c.Level != HistoryLosses && c.Level != HistoryAll, "level",
			argument.Shorten(string(c.Level)), "be losses or all"),
		refuse.If(c.Keep != 0 && (c.Keep < MinKeep || c.Keep > MaxKeep), "keep", c.Keep.String(),
			"be from 24h to 36525 days")); err != nil {
		return HistorySettings{}, err
	}
	inUse := false
	for {
		s, err := a.setHistory(ctx, c)
		if err == nil {
			return s, nil
		}
		inUse = protocol.LockedOut(err) || inUse && (ctx.Err() != nil || pause.OutOfTime(ctx))
		if inUse && pause.Exactly(ctx, pauseAfterTry) {
			continue
		}
		if inUse {
			err = fmt.Errorf("%w: %w", ErrInUse, errors.Join(err, ctx.Err()))
		}
		return HistorySettings{}, failed(ctx, err, "set the history")
	}
}

// setHistory tries once. The server ends the try when the time of ctx is up.
func (a *Admin) setHistory(ctx context.Context, c HistoryChange) (s HistorySettings, err error) {
	var level, keep any // NULL changes nothing
	if c.Level != "" {
		level = string(c.Level)
	}
	if c.Keep != 0 {
		keep = c.Keep.Seconds()
	}
	err = a.inTime(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, a.db.Queries.SetHistory, c.Actor, level, keep)
		if err != nil {
			return err
		}
		s, err = pgx.CollectExactlyOneRow(rows, func(pgx.CollectableRow) (HistorySettings, error) {
			return scanSettings(rows)
		})
		return err
	})
	return s, err
}

func (a *Admin) historySettings(ctx context.Context) (HistorySettings, error) {
	return only(server.Rows(ctx, a.db, a.db.Queries.HistorySettings, nil, scanSettings))
}

func scanSettings(rows pgx.Rows) (s HistorySettings, err error) {
	err = rows.Scan(&s.Level, micros(&s.Keep), moment(&s.Since), moment(&s.Pruned))
	return s, err
}
