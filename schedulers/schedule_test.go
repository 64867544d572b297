package schedulers

import (
	"errors"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

func mustParse(t *testing.T, spec string) Schedule {
	t.Helper()
	s := must.Get(cron.ParseStandard(spec))(t)
	return s
}

func TestTheSlotIsTheLastPlannedTimeOrOneThatIsVeryNear(t *testing.T) {
	t.Parallel()
	daily := Every(24*time.Hour, 2*time.Hour)
	for _, tc := range []struct {
		schedule  Schedule
		now, want string
	}{
		{daily, "2026-03-01T02:00:00Z", "2026-03-01T02:00:00Z"},
		{daily, "2026-03-01T02:00:00.2Z", "2026-03-01T02:00:00Z"},
		{daily, "2026-03-01T01:59:10Z", "2026-03-01T02:00:00Z"}, // a timer that fired early, or a first run
		{daily, "2026-03-01T01:58:50Z", "2026-02-28T02:00:00Z"},
		{daily, "2026-03-01T20:00:00Z", "2026-03-01T02:00:00Z"}, // by hand: it must not take the next one's
		{Every(time.Second, 0), "2026-03-01T02:00:00.85Z", "2026-03-01T02:00:00Z"},
		{Every(time.Second, 0), "2026-03-01T02:00:00.95Z", "2026-03-01T02:00:01Z"},
		{mustParse(t, "CRON_TZ=UTC 0 2 * * *"), "2026-03-01T02:00:00.2Z", "2026-03-01T02:00:00Z"},
		// years back
		{mustParse(t, "CRON_TZ=UTC 0 2 29 2 *"), "2027-06-01T00:00:00Z", "2024-02-29T02:00:00Z"},
		// 02:30 is left out on the 29th
		{mustParse(t, "CRON_TZ=Europe/Berlin 30 2 * * *"), "2026-03-29T12:00:00Z", "2026-03-28T01:30:00Z"},
		{mustParse(t, "CRON_TZ=UTC */5 9-17 * * 1-5"), "2026-03-02T08:00:00Z", "2026-02-27T17:55:00Z"},
	} {
		now := must.Get(time.Parse(time.RFC3339Nano, tc.now))(t)
		got, err := slotAt(tc.schedule, now)
		if err != nil || got.UTC().Format(time.RFC3339Nano) != tc.want {
			t.Errorf("at %s: %v, %v; want %s", tc.now, got.UTC(), err, tc.want)
		}
	}
}

// A schedule without a time zone plans in the one in which it is asked. The scheduler asks in its own.
func TestSlotsArePlannedInTheTimeZoneOfTheScheduler(t *testing.T) {
	t.Parallel()
	newYork := must.Get(time.LoadLocation("America/New_York"))(t)
	now := time.Date(2026, 7, 1, 20, 0, 0, 0, time.UTC) // 16:00 there
	s := &Slots{schedule: mustParse(t, "0 9-17 * * *"), now: func() time.Time { return now }}
	if next := s.Next(now.Add(-time.Second).In(newYork)); !next.Equal(now) {
		t.Fatalf("the scheduler runs the job at %v", next)
	}
	s.Next(now) // somebody else asks
	if slot, err := s.Slot(); err != nil || !slot.Equal(now) {
		t.Errorf("%v, %v; want %v", slot, err, now)
	}
}

func TestASchedulePlansTheSameTimesWheneverAReplicaStarted(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 345, time.UTC)
	for name, refused := range map[string]Schedule{
		"counts from the start": mustParse(t, "@every 1h"), "nil": nil, "no times": Every(0, 0), "past": past{},
	} {
		var argument *pglock.ArgumentError
		if err := checkSchedule(refused, now); !errors.As(err, &argument) || argument.Field != "schedule" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, spec := range []string{"@hourly", "0 2 * * *", "*/7 * * * *", "CRON_TZ=Asia/Kolkata 15 3 1 * *"} {
		if err := checkSchedule(mustParse(t, spec), now); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	must.Note(t, checkSchedule(Every(time.Hour, 10*time.Minute), now))
}

type past struct{}

func (past) Next(t time.Time) time.Time { return t.Add(-time.Hour) }
