package live

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

// What makes a look slow, such as a table of a million locks, may also make it fail.
func TestALookThatFailsSlowlyIsRepeatedLessOften(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{10 * time.Millisecond: 990 * time.Millisecond,
		time.Second: 4 * time.Second, 20 * time.Second: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			config := must.Get(pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none"))(t)
			var looked []time.Time
			config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
				if len(looked) == 0 { // an Admin is content with a server whose tables are locked
					looked = append(looked, time.Now())
					return &pgconn.PgError{Code: "55P03"}
				}
				looked = append(looked, time.Now())
				time.Sleep(took)
				return errors.New("no server")
			}
			pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
			defer pool.Close()
			r := &liveReader{o: &cli.Options{Timeout: time.Hour, Started: true}, pool: pool, interval: time.Second,
				admin: must.Get(lockadmin.New(t.Context(), pool))(t)}
			r.wish.Store(&liveWish{order: byWait})
			ctx, end := context.WithCancel(t.Context())
			r.run(ctx, func(s liveShot) {
				if s.trouble == nil {
					t.Error("it has not failed")
				}
				if len(looked) == 3 {
					end()
				}
			})
			if got := looked[2].Sub(looked[1]) - took; got != want {
				t.Errorf("after %v a pause of %v, want %v", took, got, want)
			}
		})
	}
}
