package drivers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/protocol"
)

var (
	sqlPGXWay      = way{"database/sql with pgx", sqlOpen("pgx", "")}
	sqlPQWay       = way{"database/sql with lib/pq", sqlOpen("postgres", "")}
	sqlPQBinaryWay = way{"database/sql with lib/pq, binary parameters", sqlOpen("postgres", "binary_parameters=yes")}
)

func sqlOpen(driver, parameter string) func(*testing.T, *scene) deposit {
	return func(t *testing.T, s *scene) deposit {
		url := s.url
		switch {
		case parameter != "" && strings.Contains(url, "?"):
			url += "&" + parameter
		case parameter != "":
			url += "?" + parameter
		}
		return sqlDeposit(s, openSQL(t, driver, url))
	}
}

// A ROLLBACK that goes past the driver takes the fence with it. Seal refuses what comes after.
func TestCallbackThatRollsBackByItselfIsToldThatItLeftTheFence(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			db := openSQL(t, driver, s.url)
			err := fencedstore.NewSQL(db).Write(t.Context(), s.lease(t), func(_ context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), "ROLLBACK")
				if err == nil {
					_, err = tx.ExecContext(t.Context(), "BEGIN")
				}
				if err == nil {
					_, err = tx.ExecContext(t.Context(), "UPDATE accounts SET balance = balance + 60")
				}
				return err
			})
			if !errors.Is(err, fencedstore.ErrLeftFence) {
				t.Errorf("the write answered %v, want %v", err, fencedstore.ErrLeftFence)
			}
			s.has(t, 0)
		})
	}
}

// sqlDeposit is the same program for all drivers.
func sqlDeposit(s *scene, db *sql.DB) deposit {
	return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
		return fencedstore.NewSQL(db).Write(ctx, fenced, func(ctx context.Context, tx *sql.Tx) error {
			for _, amount := range amounts {
				if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", amount,
					s.account); err != nil {
					return err
				}
			}
			return last()
		})
	}
}

// lib/pq says driver.ErrBadConn for a connection that the server ends, but not for one that ends in a crash.
func TestI17_APanicAtCommitIsNoRefusalForLibPQ(t *testing.T) {
	for severity, want := range map[string]bool{"PANIC": true, "FATAL": true, "ERROR": false} {
		err := fmt.Errorf("commit: %w", &pq.Error{Severity: severity, Code: "53100"})
		if got := protocol.ConnectionLost(err); got != want {
			t.Errorf("%v, %s: lost %v", err, severity, got)
		}
	}
}
