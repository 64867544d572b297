// Command nightly shows a nightly job that runs once for each night, in eight replicas whose clocks differ. The replica
// that begins is killed half way.
//
//	go run ./examples/nightly
package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/pglock-dev/pglock/examples/internal/stage"
	"github.com/pglock-dev/pglock/fencedstore"
)

const (
	every = 15 * time.Second      // nights are short here, but all replicas begin in the first
	skew  = 40 * time.Millisecond // between the clocks of two replicas
)

func main() {
	stage.Main(stage.Play{
		Name: "nightly",
		Tables: `CREATE TABLE reports (night timestamptz PRIMARY KEY, total bigint NOT NULL);
			CREATE TABLE lines (part text NOT NULL, amount bigint NOT NULL);
			INSERT INTO lines VALUES ('orders', 21), ('refunds', 21)`,
		Story:  story,
		Worker: replica,
	})
}

func story(ctx context.Context, s *stage.Stage) (string, error) {
	first := time.Now().Add(-500 * time.Millisecond).Truncate(100 * time.Millisecond) // the night that has just been
	at := strconv.FormatInt(int64(first.Sub(first.Truncate(every))), 10)
	a, err := s.Start("A", at, "0", "hangs")
	if err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "half way", a); err != nil {
		return "", err
	}
	for i := 1; i < 8; i++ {
		if _, err := s.Start(string(rune('A'+i)), at, strconv.Itoa(i)); err != nil {
			return "", err
		}
	}
	if err := s.AwaitQueue(ctx, "nightly", 7); err != nil {
		return "", err
	}
	if err := a.Kill(); err != nil {
		return "", err
	}
	for _, night := range []time.Time{first, first.Add(every)} {
		err := errors.Join(
			s.AwaitAll(ctx, 1, "made the report of "+clock(night)),
			s.AwaitAll(ctx, 6, "finds the report of "+clock(night)))
		if err != nil {
			return "", err
		}
	}
	return "eight replicas made one report for each night; of the one that died nothing was kept, the next did the " +
			"whole.",
		errors.Join(
			s.Check(ctx, "reports", 2, "SELECT count(*) FROM reports"),
			s.Check(ctx, "total of each report", "{42,42}", "SELECT array_agg(total) FROM reports"),
		)
}

// clock names a night.
func clock(night time.Time) string { return night.Format("15:04:05.0") }

func replica(ctx context.Context, w *stage.Worker) error {
	at, err := strconv.ParseInt(w.Args[0], 10, 64)
	if err != nil {
		return err
	}
	late, err := strconv.Atoi(w.Args[1])
	if err != nil {
		return err
	}
	nightly := &Nightly{Name: "nightly", Client: w.Client, Store: w.Store, Every: every,
		At: time.Duration(at), Now: func() time.Time { return time.Now().Add(-skew * time.Duration(late)) }}
	nightly.Compute = func(ctx context.Context, night time.Time) (total int64, err error) {
		w.Say("computes the report of %s; its clock is %v late", clock(night.Local()), skew*time.Duration(late))
		for _, part := range []string{"orders", "refunds"} {
			if part == "refunds" && len(w.Args) == 3 {
				return 0, w.Hang(ctx, "has counted the orders: half way")
			}
			var sum int64
			const count = "SELECT sum(amount) FROM lines WHERE part = $1"
			if err := w.Pool.QueryRow(ctx, count, part).Scan(&sum); err != nil {
				return 0, err
			}
			total += sum
		}
		return total, nil
	}
	for night, err := range nightly.Nights(ctx) {
		switch {
		case err == nil:
			w.Say("made the report of %s", clock(night.Local()))
		case errors.Is(err, fencedstore.ErrDone):
			w.Say("finds the report of %s done", clock(night.Local()))
		default:
			return err
		}
	}
	return nil
}
