package lockadmin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// shop is a database whose locks differ in age, expiry, mode, holder and queue.
func shop(t *testing.T) (admin *lockadmin.Admin, session string) {
	t.Helper()
	db := pgtest.Database(t)
	conn := db.Conn(t)
	key := uuid.NewString()
	for _, l := range []struct{ name, holder, ttl, mode, session string }{
		{"jobs/a", "ada", "3 h", "exclusive", key},
		{"jobs/b", "bob", "1 h", "exclusive", uuid.NewString()},
		{"readers", "ada", "2 h", "shared", uuid.NewString()},
		{"readers", "cyd", "4 h", "shared", uuid.NewString()},
		{"zebra", "x%_\\y", "5 h", "exclusive", key},
		{"free", "bob", "1 h", "exclusive", uuid.NewString()},
	} {
		execute(t, conn,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, $4::text::interval, p_mode => $5)`,
			l.name, l.session, l.holder, l.ttl, l.mode)
	}
	execute(t, conn,
		`UPDATE pglock.locks SET expires_at = '-infinity', ended_at = clock_timestamp() WHERE name = 'free'`)
	for n, name := range []string{"jobs/b", "jobs/b", "readers", "zebra", "zebra", "zebra"} {
		mode := "exclusive"
		execute(t, conn,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, '1 h', p_wait => true, p_session_ttl => '1 h', p_mode => $4)`,
			name, []string{key, uuid.NewString()}[n%2], fmt.Sprint("w", n), mode)
	}
	for n, name := range []string{"zebra", "readers", "jobs/b", "jobs/a", "free"} { // zebra is the oldest
		execute(t, conn,
			`UPDATE pglock.locks SET acquired_at = clock_timestamp() - $2::int * interval '1 h' WHERE name = $1`, name,
			5-n)
	}
	execute(t, conn,
		`UPDATE pglock.waiters SET enqueued_at = clock_timestamp() - (substr(holder, 2)::int % 4) * interval '1 h'
		- CASE holder WHEN 'w2' THEN interval '90 min' ELSE '0' END`)
	id := pgtest.One[string](t, conn, "SELECT pglock.session_of($1::text::uuid)::text", key)
	return newAdmin(t, db.Pool(t)), id
}

func TestLocksAreFilteredAndOrdered(t *testing.T) {
	t.Parallel()
	admin, session := shop(t)
	for name, tc := range map[string]struct {
		q    lockadmin.LocksQuery
		want string
	}{
		"all": {lockadmin.LocksQuery{}, "jobs/a jobs/b readers#1 readers#2 zebra"},
		"free ones too": {lockadmin.LocksQuery{Free: true}, "free jobs/a jobs/b readers#1 " +
			"readers#2 zebra"},
		"a part of a name":     {lockadmin.LocksQuery{Match: "b"}, "jobs/a jobs/b zebra"},
		"a part of a label":    {lockadmin.LocksQuery{Match: "yd"}, "readers#2"},
		"no pattern":           {lockadmin.LocksQuery{Match: "x%_\\y"}, "zebra"},
		"no pattern that fits": {lockadmin.LocksQuery{Match: "%"}, "zebra"},
		"a holder":             {lockadmin.LocksQuery{Holder: "ada"}, "jobs/a readers#1"},
		"a part of a holder":   {lockadmin.LocksQuery{Holder: "ad"}, ""},
		"a session":            {lockadmin.LocksQuery{Session: session}, "jobs/a zebra"},
		"a session in capitals": {lockadmin.LocksQuery{Session: strings.ToUpper(session)},
			"jobs/a zebra"},
		"a mode": {lockadmin.LocksQuery{Mode: pglock.ModeShared},
			"readers#1 readers#2"},
		"queued": {lockadmin.LocksQuery{Queued: true},
			"jobs/b readers#1 readers#2 zebra"},
		"older": {lockadmin.LocksQuery{Older: 150 * time.Minute},
			"jobs/b readers#1 readers#2 zebra"},
		"older still": {lockadmin.LocksQuery{Older: 270 * time.Minute}, "zebra"},
		"after": {lockadmin.LocksQuery{After: "jobs/b"},
			"readers#1 readers#2 zebra"},
		"after what is not there": {lockadmin.LocksQuery{After: "jobs/aa"},
			"jobs/b readers#1 readers#2 zebra"},
		"two": {lockadmin.LocksQuery{Limit: 2}, "jobs/a jobs/b"},
		"three, and the rest": {lockadmin.LocksQuery{Limit: 3}, "jobs/a jobs/b readers#1 " +
			"readers#2"},
		"three, one at a time": {lockadmin.LocksQuery{Limit: 3, PageSize: 1},
			"jobs/a jobs/b readers#1 readers#2"},
		"by age": {lockadmin.LocksQuery{Order: lockadmin.OrderAge},
			"zebra readers#1 readers#2 jobs/b jobs/a"},
		"by the last grant": {lockadmin.LocksQuery{Order: lockadmin.OrderRecent},
			"jobs/a jobs/b readers#2 readers#1 zebra"},
		"by age, two": {lockadmin.LocksQuery{Order: lockadmin.OrderAge, Limit: 2}, "zebra readers#1"},
		"by waiting": {lockadmin.LocksQuery{Order: lockadmin.OrderWaiting},
			"readers#1 readers#2 zebra jobs/b jobs/a"},
		"by expiry": {lockadmin.LocksQuery{Order: lockadmin.OrderExpiry},
			"jobs/b readers#1 jobs/a readers#2 zebra"},
		"by expiry, free ones last": {lockadmin.LocksQuery{Order: lockadmin.OrderExpiry, Free: true},
			"jobs/b readers#1 jobs/a readers#2 zebra free"},
		"everything at once": {lockadmin.LocksQuery{Order: lockadmin.OrderAge, Prefix: "jobs/", Queued: true,
			Older: time.Hour, Match: "o", Mode: pglock.ModeExclusive},
			"jobs/b"},
	} {
		got := texts(t, admin.Locks(t.Context(), tc.q), func(l pglock.LockInfo) string {
			if l.Slot > 0 {
				return fmt.Sprint(l.Name, "#", l.Slot)
			}
			return l.Name
		})
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestLocksTellHowLongTheFirstHasWaited(t *testing.T) {
	t.Parallel()
	admin, _ := shop(t)
	// of the first ticket
	for name, hours := range map[string]time.Duration{"jobs/a": 0, "jobs/b": 0, "readers": 3, "zebra": 3} {
		info, err := admin.Get(t.Context(), name)
		if err != nil || info.LongestWait.Truncate(time.Hour) != hours*time.Hour ||
			(info.LongestWait > 0) != (info.Waiting > 0) {
			t.Errorf("%s: %+v, %v; want %d h", name, info, err, hours)
		}
	}
}

func TestWaitersAreFilteredAndOrderedAndKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	admin, session := shop(t)
	for name, tc := range map[string]struct {
		q    lockadmin.WaitersQuery
		want string
	}{
		"all":      {lockadmin.WaitersQuery{}, "jobs/b:1:w0 jobs/b:2:w1 readers:1:w2 zebra:1:w3 zebra:2:w4 zebra:3:w5"},
		"a lock":   {lockadmin.WaitersQuery{Lock: "zebra"}, "zebra:1:w3 zebra:2:w4 zebra:3:w5"},
		"a holder": {lockadmin.WaitersQuery{Holder: "w5"}, "zebra:3:w5"},
		"one at a time": {lockadmin.WaitersQuery{PageSize: 1, Session: session},
			"jobs/b:1:w0 readers:1:w2 zebra:2:w4"},
		"a part":   {lockadmin.WaitersQuery{Match: "ead"}, "readers:1:w2"},
		"a prefix": {lockadmin.WaitersQuery{Prefix: "jobs/"}, "jobs/b:1:w0 jobs/b:2:w1"},
		"after": {lockadmin.WaitersQuery{After: "jobs/b"}, "readers:1:w2 zebra:1:w3 " +
			"zebra:2:w4 zebra:3:w5"},
		"older": {lockadmin.WaitersQuery{Older: 90 * time.Minute},
			"readers:1:w2 zebra:1:w3"},
		"by age": {lockadmin.WaitersQuery{Order: lockadmin.OrderAge, Limit: 4},
			"readers:1:w2 zebra:1:w3 jobs/b:2:w1 zebra:3:w5"},
		"by age, a lock": {lockadmin.WaitersQuery{Lock: "zebra", Order: lockadmin.OrderAge},
			"zebra:1:w3 zebra:3:w5 zebra:2:w4"},
		"a mode": {lockadmin.WaitersQuery{Mode: pglock.ModeShared}, ""},
		"limit":  {lockadmin.WaitersQuery{Limit: 3}, "jobs/b:1:w0 jobs/b:2:w1 readers:1:w2"},
		"limit and pages": {lockadmin.WaitersQuery{Limit: 3, PageSize: 2},
			"jobs/b:1:w0 jobs/b:2:w1 readers:1:w2"},
	} {
		got := texts(t, admin.Waiters(t.Context(), tc.q), func(w lockadmin.Waiter) string {
			return fmt.Sprint(w.Lock, ":", w.Place, ":", w.Holder)
		})
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestFencesAreFilteredAndOrdered(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	for n, f := range [][2]string{{"l1", "b/1"}, {"l1", "a/2"}, {"l2", "b/3"}, {"l2", "c"}} {
		execute(t, conn, `SELECT pglock.fence($1, l.token, l.grant_id, $2) FROM (
			SELECT (pglock.acquire_lease($1, g, gen_random_uuid(), 'h', '1 h')).token, g AS grant_id FROM gen_random_uuid() g) l`, f[0], f[1])
		execute(t, conn,
			`UPDATE pglock.fences SET advanced_at = clock_timestamp() - $2::int * interval '1 h' WHERE resource = $1`,
			f[1], (n+2)%4+1)
		execute(t, conn,
			`UPDATE pglock.locks SET expires_at = '-infinity', ended_at = clock_timestamp() WHERE name = $1`, f[0])
	}
	admin := newAdmin(t, db.Pool(t))
	for name, tc := range map[string]struct {
		q    lockadmin.FencesQuery
		want string
	}{
		"all":      {lockadmin.FencesQuery{}, "a/2 b/1 b/3 c"},
		"a lock":   {lockadmin.FencesQuery{Lock: "l2"}, "b/3 c"},
		"a prefix": {lockadmin.FencesQuery{Prefix: "b/"}, "b/1 b/3"},
		"a prefix of a lock": {lockadmin.FencesQuery{Lock: "l1", Prefix: "b/", PageSize: 1},
			"b/1"},
		"a part":         {lockadmin.FencesQuery{Match: "l1"}, "a/2 b/1"},
		"older":          {lockadmin.FencesQuery{Older: 150 * time.Minute}, "a/2 b/1"},
		"after":          {lockadmin.FencesQuery{After: "b/1"}, "b/3 c"},
		"by age":         {lockadmin.FencesQuery{Order: lockadmin.OrderAge}, "a/2 b/1 c b/3"},
		"by age, a lock": {lockadmin.FencesQuery{Lock: "l2", Order: lockadmin.OrderAge}, "c b/3"},
		"one":            {lockadmin.FencesQuery{Limit: 1}, "a/2"},
	} {
		got := texts(t, admin.Fences(t.Context(), tc.q), func(f lockadmin.FenceInfo) string {
			return f.Resource
		})
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestFirstLocksKeepsTheHoldersOfALockTogether(t *testing.T) {
	t.Parallel()
	admin, _ := shop(t)
	for n, want := range map[int]string{0: "5 false", 1: "1 true", 2: "2 true", 3: "4 true", 4: "4 true", 5: "5 false",
		6: "5 false"} {
		some, more, err := lists.FirstLocks(n, admin.Locks(t.Context(), lockadmin.LocksQuery{PageSize: 2}))
		if got := fmt.Sprint(len(some), " ", more); got != want || err != nil {
			t.Errorf("the first %d: %s, %v; want %s", n, got, err, want)
		}
	}
	some, more, err := lists.First(3, admin.Locks(t.Context(), lockadmin.LocksQuery{Order: lockadmin.OrderWaiting,
		Limit: 4}))
	if err != nil || len(some) != 3 || !more {
		t.Errorf("in another order: %+v, %v, %v; want three, and more", some, more, err)
	}
}

func TestListsRefuseWhatTheyCannotDo(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, pgtest.Database(t).Pool(t))
	locks := func(q lockadmin.LocksQuery) error {
		_, err := lists.All(admin.Locks(t.Context(), q))
		return err
	}
	waiters := func(q lockadmin.WaitersQuery) error {
		_, err := lists.All(admin.Waiters(t.Context(), q))
		return err
	}
	sessions := func(q lockadmin.SessionsQuery) error {
		_, err := lists.All(admin.Sessions(t.Context(), q))
		return err
	}
	for name, tc := range map[string]struct {
		err  error
		says string
	}{
		"order of locks": {locks(lockadmin.LocksQuery{Order: "size"}),
			`order is "size": it must be name, age, recent, waiting or expiry`},
		"order of locks, sessions": {locks(lockadmin.LocksQuery{Order: lockadmin.OrderLeases}),
			`it must be name, age, recent, waiting or expiry`},
		"order of waiters": {waiters(lockadmin.WaitersQuery{Lock: "a", Order: lockadmin.OrderExpiry}),
			`it must be name or age`},
		"order of sessions": {sessions(lockadmin.SessionsQuery{Order: "size"}),
			`order is "size": it must be name, age, waiting or leases`},
		"mode": {locks(lockadmin.LocksQuery{Mode: "any"}),
			`mode is "any": it must be exclusive, shared or limit`},
		"session": {locks(lockadmin.LocksQuery{Session: "x"}), `session is "x": it must be the ID of a session`},
		"session in braces": {locks(lockadmin.LocksQuery{Session: "{3b241101-e2bb-4255-8caf-4136c566a962}"}),
			`the ID of a session`},
		"limit": {locks(lockadmin.LocksQuery{Limit: -1}), `limit is -1: it must be at least 1`},
		"limit of an order": {locks(lockadmin.LocksQuery{Limit: 10_001, Order: lockadmin.OrderAge}),
			`limit is 10001: it must be from 1 to 10000 in the order age`},
		"older": {locks(lockadmin.LocksQuery{Older: -1}), `older is -1ns: it must be from 1µs`},
		"after in an order": {locks(lockadmin.LocksQuery{After: "a", Order: lockadmin.OrderAge}),
			`with the order name only`},
		"after in a queue": {waiters(lockadmin.WaitersQuery{Lock: "a", After: "b"}), `for all locks only`},
		"after of sessions": {sessions(lockadmin.SessionsQuery{After: "a"}),
			`after is "a": it must be the ID of a session`},
		"after holder": {sessions(lockadmin.SessionsQuery{AfterHolder: "ada"}), `it must be given with after`},
		"after holder with a NUL": {sessions(lockadmin.SessionsQuery{AfterHolder: "a\x00",
			After: "3b241101-e2bb-4255-8caf-4136c566a962"}), `have no NUL byte`},
		"NUL":         {locks(lockadmin.LocksQuery{Match: "a\x00"}), `have no NUL byte`},
		"long holder": {locks(lockadmin.LocksQuery{Holder: strings.Repeat("a", 257)}), `have 1 to 256 bytes`},
	} {
		if !errors.Is(tc.err, pglock.ErrInvalid) || !strings.Contains(tc.err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, tc.err, tc.says)
		}
	}
}
