package lockadmin

import (
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

// HistoryOption configures SetHistory.
type HistoryOption func(*historyChange) error

type historyChange struct {
	actor string
	level *HistoryLevel
	keep  *float64 // seconds
}

// WithLevel sets the level of the history.
func WithLevel(l HistoryLevel) HistoryOption {
	return func(c *historyChange) error {
		c.level = &l
		bad := l != HistoryLosses && l != HistoryAll
		return refuse.If(bad, "level", argument.Shorten(string(l)), "be losses or all")
	}
}

// WithKeep sets for how long the history is kept, from MinKeep to MaxKeep. Defaults to DefaultKeep, 90 days.
func WithKeep(d time.Duration) HistoryOption {
	return func(c *historyChange) error {
		c.keep = new(d.Seconds())
		return refuse.If(d < MinKeep || d > MaxKeep, "keep", d.String(), "be from 24h to 36525 days")
	}
}

// WithChanger names the person for the history, 1 to pglock.MaxHolderBytes bytes. Defaults to "host/program[pid]".
func WithChanger(who string) HistoryOption {
	return func(c *historyChange) error {
		c.actor = who
		return refuse.Text("actor", who, pglock.MaxHolderBytes)
	}
}

// HistorySettings tells what the history has. The database user needs the role pglock_admin. Errors are those of Locks.
func (a *Admin) HistorySettings(ctx context.Context) (HistorySettings, error) {
	s, err := a.historySettings(ctx)
	return s, failed(ctx, err, "read the settings of the history")
}

// SetHistory changes which tenures the history has, and for how long it is kept, for every program of the database. It
// leaves alone what no option names, and returns the settings. It writes an event of EventLevel.
//
// A change of the level needs the table of locks for a moment. It waits for those who write to the table for at most a
// tenth of a second, while others queue behind it, and then tries again until ctx ends. The database user needs the
// role pglock_admin.
//
// Errors: ErrInUse, pglock.ErrInvalid, ErrPermission, ErrReadOnly, ctx's error, or the connection's failure.
func (a *Admin) SetHistory(ctx context.Context, opts ...HistoryOption) (HistorySettings, error) {
	c := historyChange{actor: argument.Process(pglock.MaxHolderBytes)}
	if err := refuse.Options(&c, opts); err != nil {
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
func (a *Admin) setHistory(ctx context.Context, c historyChange) (s HistorySettings, err error) {
	err = a.inTime(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, a.db.Queries.SetHistory, c.actor, c.level, c.keep)
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
