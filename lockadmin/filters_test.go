package lockadmin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
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
	var id string
	if err := conn.QueryRow(t.Context(), "SELECT pglock.session_of($1::text::uuid)::text", key).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return newAdmin(t, db.Pool(t)), id
}

func TestLocksAreFilteredAndOrdered(t *testing.T) {
	t.Parallel()
	admin, session := shop(t)
	for name, tc := range map[string]struct {
		opts []lockadmin.ListOption
		want string
	}{
		"all": {nil, "jobs/a jobs/b readers#1 readers#2 zebra"},
		"free ones too": {[]lockadmin.ListOption{lockadmin.WithFree()}, "free jobs/a jobs/b readers#1 " +
			"readers#2 zebra"},
		"a part of a name":     {[]lockadmin.ListOption{lockadmin.WithMatch("b")}, "jobs/a jobs/b zebra"},
		"a part of a label":    {[]lockadmin.ListOption{lockadmin.WithMatch("yd")}, "readers#2"},
		"no pattern":           {[]lockadmin.ListOption{lockadmin.WithMatch("x%_\\y")}, "zebra"},
		"no pattern that fits": {[]lockadmin.ListOption{lockadmin.WithMatch("%")}, "zebra"},
		"a holder":             {[]lockadmin.ListOption{lockadmin.WithHolder("ada")}, "jobs/a readers#1"},
		"a part of a holder":   {[]lockadmin.ListOption{lockadmin.WithHolder("ad")}, ""},
		"a session":            {[]lockadmin.ListOption{lockadmin.WithSession(session)}, "jobs/a zebra"},
		"a session in capitals": {[]lockadmin.ListOption{lockadmin.WithSession(strings.ToUpper(session))},
			"jobs/a zebra"},
		"a mode": {[]lockadmin.ListOption{lockadmin.WithMode(pglock.ModeShared)},
			"readers#1 readers#2"},
		"queued": {[]lockadmin.ListOption{lockadmin.WithQueued()},
			"jobs/b readers#1 readers#2 zebra"},
		"older": {[]lockadmin.ListOption{lockadmin.WithOlder(150 * time.Minute)},
			"jobs/b readers#1 readers#2 zebra"},
		"older still": {[]lockadmin.ListOption{lockadmin.WithOlder(270 * time.Minute)}, "zebra"},
		"after": {[]lockadmin.ListOption{lockadmin.WithAfter("jobs/b")},
			"readers#1 readers#2 zebra"},
		"after what is not there": {[]lockadmin.ListOption{lockadmin.WithAfter("jobs/aa")},
			"jobs/b readers#1 readers#2 zebra"},
		"two": {[]lockadmin.ListOption{lockadmin.WithLimit(2)}, "jobs/a jobs/b"},
		"three, and the rest": {[]lockadmin.ListOption{lockadmin.WithLimit(3)}, "jobs/a jobs/b readers#1 " +
			"readers#2"},
		"three, one at a time": {[]lockadmin.ListOption{lockadmin.WithLimit(3), lockadmin.WithPageSize(1)},
			"jobs/a jobs/b readers#1 readers#2"},
		"by age": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge)},
			"zebra readers#1 readers#2 jobs/b jobs/a"},
		"by the last grant": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderRecent)},
			"jobs/a jobs/b readers#2 readers#1 zebra"},
		"by age, two": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge),
			lockadmin.WithLimit(2)}, "zebra readers#1"},
		"by waiting": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderWaiting)},
			"readers#1 readers#2 zebra jobs/b jobs/a"},
		"by expiry": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderExpiry)},
			"jobs/b readers#1 jobs/a readers#2 zebra"},
		"by expiry, free ones last": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderExpiry),
			lockadmin.WithFree()}, "jobs/b readers#1 jobs/a readers#2 zebra free"},
		"everything at once": {[]lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge),
			lockadmin.WithPrefix("jobs/"), lockadmin.WithQueued(),
			lockadmin.WithOlder(time.Hour), lockadmin.WithMatch("o"), lockadmin.WithMode(pglock.ModeExclusive)},
			"jobs/b"},
	} {
		got := texts(t, admin.Locks(t.Context(), tc.opts...), func(l pglock.LockInfo) string {
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
		lock string
		opts []lockadmin.ListOption
		want string
	}{
		"all":      {"", nil, "jobs/b:1:w0 jobs/b:2:w1 readers:1:w2 zebra:1:w3 zebra:2:w4 zebra:3:w5"},
		"a lock":   {"zebra", nil, "zebra:1:w3 zebra:2:w4 zebra:3:w5"},
		"a holder": {"", []lockadmin.ListOption{lockadmin.WithHolder("w5")}, "zebra:3:w5"},
		"one at a time": {"", []lockadmin.ListOption{lockadmin.WithPageSize(1), lockadmin.WithSession(session)},
			"jobs/b:1:w0 readers:1:w2 zebra:2:w4"},
		"a part":   {"", []lockadmin.ListOption{lockadmin.WithMatch("ead")}, "readers:1:w2"},
		"a prefix": {"", []lockadmin.ListOption{lockadmin.WithPrefix("jobs/")}, "jobs/b:1:w0 jobs/b:2:w1"},
		"after": {"", []lockadmin.ListOption{lockadmin.WithAfter("jobs/b")}, "readers:1:w2 zebra:1:w3 " +
			"zebra:2:w4 zebra:3:w5"},
		"older": {"", []lockadmin.ListOption{lockadmin.WithOlder(90 * time.Minute)},
			"readers:1:w2 zebra:1:w3"},
		"by age": {"", []lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge), lockadmin.WithLimit(4)},
			"readers:1:w2 zebra:1:w3 jobs/b:2:w1 zebra:3:w5"},
		"by age, a lock": {"zebra", []lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge)},
			"zebra:1:w3 zebra:3:w5 zebra:2:w4"},
		"a mode": {"", []lockadmin.ListOption{lockadmin.WithMode(pglock.ModeShared)}, ""},
		"limit":  {"", []lockadmin.ListOption{lockadmin.WithLimit(3)}, "jobs/b:1:w0 jobs/b:2:w1 readers:1:w2"},
		"limit and pages": {"", []lockadmin.ListOption{lockadmin.WithLimit(3), lockadmin.WithPageSize(2)},
			"jobs/b:1:w0 jobs/b:2:w1 readers:1:w2"},
	} {
		got := texts(t, admin.Waiters(t.Context(), tc.lock, tc.opts...), func(w lockadmin.Waiter) string {
			return fmt.Sprint(w.Lock, ":", w.Place, ":", w.Holder)
		})
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestFencesAreFilteredAndOrdered(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
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
		lock string
		opts []lockadmin.ListOption
		want string
	}{
		"all":      {"", nil, "a/2 b/1 b/3 c"},
		"a lock":   {"l2", nil, "b/3 c"},
		"a prefix": {"", []lockadmin.ListOption{lockadmin.WithPrefix("b/")}, "b/1 b/3"},
		"a prefix of a lock": {"l1", []lockadmin.ListOption{lockadmin.WithPrefix("b/"), lockadmin.WithPageSize(1)},
			"b/1"},
		"a part":         {"", []lockadmin.ListOption{lockadmin.WithMatch("l1")}, "a/2 b/1"},
		"older":          {"", []lockadmin.ListOption{lockadmin.WithOlder(150 * time.Minute)}, "a/2 b/1"},
		"after":          {"", []lockadmin.ListOption{lockadmin.WithAfter("b/1")}, "b/3 c"},
		"by age":         {"", []lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge)}, "a/2 b/1 c b/3"},
		"by age, a lock": {"l2", []lockadmin.ListOption{lockadmin.WithOrder(lockadmin.OrderAge)}, "c b/3"},
		"one":            {"", []lockadmin.ListOption{lockadmin.WithLimit(1)}, "a/2"},
	} {
		got := texts(t, admin.Fences(t.Context(), tc.lock, tc.opts...), func(f lockadmin.FenceInfo) string {
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
		some, more, err := lockadmin.FirstLocks(n, admin.Locks(t.Context(), lockadmin.WithPageSize(2)))
		if got := fmt.Sprint(len(some), " ", more); got != want || err != nil {
			t.Errorf("the first %d: %s, %v; want %s", n, got, err, want)
		}
	}
	some, more, err := lockadmin.First(3, admin.Locks(t.Context(), lockadmin.WithOrder(lockadmin.OrderWaiting),
		lockadmin.WithLimit(4)))
	if err != nil || len(some) != 3 || !more {
		t.Errorf("in another order: %+v, %v, %v; want three, and more", some, more, err)
	}
}

func TestListsRefuseWhatTheyCannotDo(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, pgtest.Database(t).Pool(t))
	locks := func(o ...lockadmin.ListOption) error {
		_, err := lockadmin.Collect(admin.Locks(t.Context(), o...))
		return err
	}
	waiters := func(o ...lockadmin.ListOption) error {
		_, err := lockadmin.Collect(admin.Waiters(t.Context(), "a", o...))
		return err
	}
	fences := func(o ...lockadmin.ListOption) error {
		_, err := lockadmin.Collect(admin.Fences(t.Context(), "", o...))
		return err
	}
	sessions := func(o ...lockadmin.ListOption) error {
		_, err := lockadmin.Collect(admin.Sessions(t.Context(), o...))
		return err
	}
	for name, tc := range map[string]struct {
		err  error
		says string
	}{
		"order of locks": {locks(lockadmin.WithOrder("size")),
			`order is "size": it must be name, age, recent, waiting or expiry`},
		"order of locks, sessions": {locks(lockadmin.WithOrder(lockadmin.OrderLeases)),
			`it must be name, age, recent, waiting or expiry`},
		"order of waiters": {waiters(lockadmin.WithOrder(lockadmin.OrderExpiry)), `it must be name or age`},
		"order of sessions": {sessions(lockadmin.WithOrder("")),
			`order is "": it must be name, age, waiting or leases`},
		"mode": {locks(lockadmin.WithMode("any")),
			`mode is "any": it must be exclusive, shared or limit`},
		"session": {locks(lockadmin.WithSession("x")), `session is "x": it must be the ID of a session`},
		"session in braces": {locks(lockadmin.WithSession("{3b241101-e2bb-4255-8caf-4136c566a962}")),
			`the ID of a session`},
		"limit": {locks(lockadmin.WithLimit(0)), `limit is 0: it must be at least 1`},
		"limit of an order": {locks(lockadmin.WithLimit(10_001), lockadmin.WithOrder(lockadmin.OrderAge)),
			`limit is 10001: it must be from 1 to 10000 in the order age`},
		"older": {locks(lockadmin.WithOlder(0)), `older is 0s: it must be from 1µs`},
		"after in an order": {locks(lockadmin.WithAfter("a"), lockadmin.WithOrder(lockadmin.OrderAge)),
			`with the order name only`},
		"after in a queue":  {waiters(lockadmin.WithAfter("b")), `for all locks only`},
		"after of sessions": {sessions(lockadmin.WithAfter("a")), `after is "a": it must be the ID of a session`},
		"free waiters":      {waiters(lockadmin.WithFree()), `WithFree is given: it must not be given to Waiters`},
		"mode of fences": {fences(lockadmin.WithMode(pglock.ModeShared)),
			`WithMode is given: it must not be given to Fences`},
		"prefix of sessions": {sessions(lockadmin.WithPrefix("a")), `must not be given to Sessions`},
		"empty match":        {locks(lockadmin.WithMatch("")), `match is empty`},
		"NUL":                {locks(lockadmin.WithMatch("a\x00")), `have no NUL byte`},
		"long holder":        {locks(lockadmin.WithHolder(strings.Repeat("a", 257))), `have 1 to 256 bytes`},
	} {
		if !errors.Is(tc.err, pglock.ErrInvalid) || !strings.Contains(tc.err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, tc.err, tc.says)
		}
	}
}
