package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

type lock struct {
	Name, Holder, Token string
	Held                bool
	Remaining           int64 `json:"remaining_ms"`
	TTL                 int64 `json:"ttl_ms"`
	LongestWait         int64 `json:"longest_wait_ms"`
	Waiting             int
	Metadata            map[string]string
	Verdict, Kind       string
}

type locks struct {
	At       time.Time
	Server   string
	Locks    []lock
	More     bool
	CanBreak bool `json:"can_break"`
	Ill      struct {
		All   bool
		Locks []struct {
			Lock, Severity, Kind, Text, Who string
			Since                           time.Time
		}
	}
}

// one is the answer about one lock.
type one struct {
	Lock    *lock
	Holders []lock
	Waiters []struct {
		Place                  int
		Ticket, Before, Holder string
		Behind                 string
		Alive                  bool
	}
	MoreWaiters bool `json:"more_waiters"`
	Why         struct {
		State    string
		Verdicts []struct{ Kind, Text string }
	}
}

// hostile is a name that would do harm if it were HTML, a header, an event of a stream, or a terminal's.
const hostile = "</script><img src=x onerror=alert(1)>\r\n\ndata: {}\x1b[2J\u202e\u2028'\"&amp;"

func TestTheListHasLocksAndTheirTokensAsTexts(t *testing.T) {
	t.Parallel()
	s := start(t)
	lease := s.hold("app-1", "nightly")
	got := decode[locks](t, s.get("/api/locks").want(200).body)
	if len(got.Locks) != 1 || got.CanBreak || got.At.IsZero() {
		t.Fatalf("%+v", got)
	}
	l := got.Locks[0]
	if l.Name != "nightly" || l.Holder != "app-1" || l.Token != fmt.Sprint(lease.Token()) || !l.Held ||
		l.TTL != 60_000 || l.Remaining < 1 {
		t.Errorf("%+v", l)
	}
}

// The page subtracts the server's times from it. The server's clock has microseconds, that of this program more.
func TestTheListHasTheTimeOfTheServerAlsoWhereNothingIsHeld(t *testing.T) {
	t.Parallel()
	s := start(t)
	for range 5 { // one of a thousand moments has whole microseconds by chance
		got := decode[locks](t, s.get("/api/locks").want(200).body)
		if got.At.IsZero() || got.At.Nanosecond()%1000 != 0 {
			t.Errorf("at %v, want a time of the server", got.At)
		}
	}
}

// TestI23_AStandbyShowsThePastAndSaysSo has a real one.
func TestThePageDoesNotSayThatAllIsWellOnAStandby(t *testing.T) {
	t.Parallel()
	if v := dashboard.ViewIll(lockadmin.Overview{Known: 1, Well: 1}); !v.All || v.Standby {
		t.Errorf("of a primary it says %+v", v)
	}
	if v := dashboard.ViewIll(lockadmin.Overview{Known: 1, Standby: true}); v.All || !v.Standby {
		t.Errorf("of a standby it says %+v", v)
	}
}

// The list says of each lock what why says, and begins with what is wrong in the whole database.
func TestTheListBeginsWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.hold("app-1", "nightly")
	s.hold("app-2", "report")
	well := decode[locks](t, s.get("/api/locks").want(200).body)
	if len(well.Ill.Locks) != 0 || !well.Ill.All || well.Locks[0].Verdict != "ok" || well.Locks[0].Kind != "held" {
		t.Errorf("all is well: %+v", well)
	}
	s.execute("UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 min' WHERE name = 'report'")
	got := decode[locks](t, s.get("/api/locks?match=nightly").want(200).body)
	if len(got.Locks) != 1 || got.Locks[0].Verdict != "ok" || len(got.Ill.Locks) != 1 ||
		got.Ill.Locks[0].Lock != "report" ||
		got.Ill.Locks[0].Severity != "warning" || got.Ill.Locks[0].Kind != "silent" || got.Ill.Locks[0].Who != "app-2" {
		t.Errorf("the holder of report gives no sign of life: %+v", got)
	}
	if all := decode[locks](t, s.get("/api/locks").want(200).body); all.Locks[1].Verdict != "warning" {
		t.Errorf("the list says of report: %+v", all.Locks[1])
	}
	s.execute("SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-3', '1 h', " +
		"p_wait => true, p_session_ttl => '1 h')")
	s.execute("UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 min' WHERE name = 'report'")
	free := decode[locks](t, s.get("/api/locks").want(200).body)
	if len(free.Ill.Locks) != 1 || free.Ill.Locks[0].Lock != "report" || free.Ill.Locks[0].Severity != "stuck" {
		t.Errorf("nobody holds report, and nobody gets it: %+v", free)
	}
}

func TestHostileTextsComeOutAsJSONAlone(t *testing.T) {
	t.Parallel()
	s := start(t)
	metadata, _ := json.Marshal(map[string]string{"note": hostile})
	s.hold(hostile[:200%len(hostile)], hostile, pglock.WithMetadata(metadata))
	for _, path := range []string{"/api/locks", "/api/lock?name=" + escape(hostile)} {
		r := s.get(path).want(200)
		if kind := r.header.Get("Content-Type"); kind != "application/json; charset=utf-8" {
			t.Errorf("%s has the type %s", path, kind)
		}
		if strings.ContainsAny(r.body, "<>\x1b\n\u2028") {
			t.Errorf("%s has characters that JSON should escape: %q", path, r.body)
		}
	}
	l := decode[locks](t, s.get("/api/locks").body).Locks[0]
	if l.Name != hostile || l.Metadata["note"] != hostile {
		t.Errorf("%+v", l)
	}
	events := s.stream("/api/stream")
	if got := decode[locks](t, events.next("locks")); got.Locks[0].Name != hostile {
		t.Errorf("the stream has %+v", got)
	}
}

// They may hold secrets, and whoever sees the page need not be who may see them.
func TestStatementsOfOtherProgramsStayOutOfThePage(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.hold("app-1", "nightly")
	conn := s.db.Conn(t)
	for _, sql := range []string{"BEGIN",
		"SELECT 'secret-4242' FROM pglock.locks WHERE name = 'nightly' FOR UPDATE"} {
		must.Get(conn.Exec(t.Context(), sql))(t)
	}
	body := ""
	pgtest.Eventually(t, "the page to say who has locked the row", func() bool {
		body = s.get("/api/lock?name=nightly").want(200).body
		return strings.Contains(body, "has locked the row")
	})
	if body += s.get("/api/locks").want(200, "has locked its row").body; strings.Contains(body, "secret-4242") {
		t.Errorf("the page has the statement: %s", body)
	}
}

func TestOneLockHasItsQueue(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.hold("app-1", "nightly")
	s.wait("app-2", "nightly")
	s.wait("app-3", "nightly")
	got := decode[one](t, s.get("/api/lock?name=nightly").want(200).body)
	if len(got.Holders) != 1 || len(got.Waiters) != 2 || got.Waiters[0].Holder != "app-2" ||
		got.Waiters[0].Behind != "app-1" || got.Waiters[1].Behind != "app-2" ||
		got.Waiters[1].Before != got.Waiters[0].Ticket || got.Waiters[1].Place != 2 || got.Lock.Waiting != 2 {
		t.Errorf("%+v", got)
	}
	s.get("/api/lock?name=nobody").want(404, "no lock of this name")
}

// wait puts somebody into the queue, until the test ends.
func (s *stage) wait(holder, name string) {
	s.t.Helper()
	client := must.Get(pglock.New(s.t.Context(), s.pool, pglock.WithDefaultHolder(holder)))(s.t)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if lease, err := client.Acquire(ctx, name); err == nil {
			_ = lease.Release(context.WithoutCancel(ctx))
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		must.Note(s.t, client.Close(context.Background()))
	})
	for conn := s.db.Conn(s.t); ; {
		var queued bool
		err := conn.QueryRow(s.t.Context(), "SELECT EXISTS (SELECT FROM pglock.list_waiters($1) w WHERE w.holder = $2)",
			name, holder).Scan(&queued)
		if err != nil {
			s.t.Fatal(err)
		}
		if queued {
			return
		}
	}
}

func TestAPageOfTheListIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.many(30, "")
	got := decode[locks](t, s.get("/api/locks?limit=10").want(200).body)
	if len(got.Locks) != 10 || !got.More {
		t.Errorf("%d locks, more: %v", len(got.Locks), got.More)
	}
	got = decode[locks](t, s.get("/api/locks?limit=20&after="+escape(got.Locks[9].Name)).want(200).body)
	if len(got.Locks) != 20 || got.More || got.Locks[0].Name != "lock 00011" {
		t.Errorf("%d locks from %s, more: %v", len(got.Locks), got.Locks[0].Name, got.More)
	}
	got = decode[locks](t, s.get("/api/locks?match=0002").want(200).body)
	if len(got.Locks) != 11 {
		t.Errorf("%d locks have 0002 in their names", len(got.Locks))
	}
}

// Metadata may be long: a page of the list ends before it has too many bytes.
func TestAPageOfTheListHasAtMostEightMegabytes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.many(1100, strings.Repeat("x", 8000))
	r := s.get("/api/locks?limit=10000").want(200)
	got := decode[locks](t, r.body)
	if len(r.body) > 10<<20 || !got.More || len(got.Locks) < 900 {
		t.Errorf("%d bytes, %d locks, more: %v", len(r.body), len(got.Locks), got.More)
	}
}

// many makes locks that are held, with a text in their metadata.
func (s *stage) many(n int, note string) {
	s.t.Helper()
	s.execute(`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at, metadata)
		SELECT 'lock ' || to_char(n, 'FM00000'), n, gen_random_uuid(), gen_random_uuid(), 'app ' || n % 7, '1h', now(), now(), now() + '1h',
			CASE WHEN $2 <> '' THEN json_build_object('note', $2::text) END
		FROM generate_series(1, $1::int) n`, n, note)
}

func TestTenThousandLocksAreOneAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.many(10_000, "")
	began := time.Now()
	got := decode[locks](t, s.get("/api/locks?limit=10000").want(200).body)
	took := time.Since(began)
	if len(got.Locks) != 10_000 || got.More {
		t.Errorf("%d locks, more: %v", len(got.Locks), got.More)
	}
	t.Logf("10,000 locks took %s, of which reading may take 10 s", took)
}

func TestSessionsAreListedAndSearched(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.hold("app-1", "nightly")
	s.hold("app-2", "hourly")
	s.wait("app-3", "nightly")
	type sessions struct {
		Sessions []struct {
			ID, Holder      string
			Leases, Tickets int
			Life            lockadmin.Life
		}
		More bool
	}
	got := decode[sessions](t, s.get("/api/sessions?limit=2").want(200).body)
	if len(got.Sessions) != 2 || !got.More || got.Sessions[0].Holder != "app-1" || got.Sessions[0].Leases != 1 ||
		got.Sessions[0].Life != lockadmin.LifeUnknown {
		t.Errorf("%+v", got)
	}
	got = decode[sessions](t, s.get("/api/sessions?limit=2&after="+got.Sessions[1].ID).want(200).body)
	if len(got.Sessions) != 1 || got.More || got.Sessions[0].Tickets != 1 {
		t.Errorf("%+v", got)
	}
	got = decode[sessions](t, s.get("/api/sessions?match=app-2").want(200).body)
	if len(got.Sessions) != 1 || got.Sessions[0].Holder != "app-2" {
		t.Errorf("%+v", got)
	}
	s.get("/api/sessions?after=nonsense").want(400, `"field":"after"`)
}

func TestTheOrderIsTheServers(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.many(20, "")
	s.execute("UPDATE pglock.locks SET acquired_at = now() - make_interval(mins => slot + token::int), expires_at = " +
		"now() + make_interval(mins => token::int)")
	for order, first := range map[string]string{"name": "lock 00001", "age": "lock 00020", "expiry": "lock 00001",
		"waiting": "lock 00001"} {
		got := decode[locks](t, s.get("/api/locks?limit=3&order="+order).want(200).body)
		if len(got.Locks) != 3 || !got.More || got.Locks[0].Name != first && order != "waiting" {
			t.Errorf("%s: %+v", order, got)
		}
		if got = decode[locks](t, s.get("/api/locks?limit=20&order="+order).want(200).body); len(got.Locks) != 20 ||
			got.More {
			t.Errorf("%s: %d locks, more: %v", order, len(got.Locks), got.More)
		}
		s.stream("/api/stream?order=" + order).next("locks")
	}
	s.get("/api/locks?order=age&after=x").want(400, `"field":"after"`)
}

func TestHoldersOfOneLockStayTogether(t *testing.T) {
	t.Parallel()
	s := start(t)
	for n := range 5 {
		s.hold(fmt.Sprint("app-", n), "gpu", pglock.WithLimit(5))
	}
	s.hold("app-9", "last")
	got := decode[locks](t, s.get("/api/locks?limit=2").want(200).body)
	if len(got.Locks) != 5 || !got.More {
		t.Errorf("%d holders, more: %v", len(got.Locks), got.More)
	}
	if got = decode[locks](t, s.get("/api/locks?after=gpu").want(200).body); len(got.Locks) != 1 ||
		got.Locks[0].Name != "last" {
		t.Errorf("%+v", got)
	}
}

// In the other orders the holders of a lock stand apart, and a list ends with its limit.
func TestAnOrderThatEndsAmongHoldersOfOneLockSaysMore(t *testing.T) {
	t.Parallel()
	s := start(t)
	for n := range 5 {
		s.hold(fmt.Sprint("app-", n), "gpu", pglock.WithLimit(5))
	}
	for _, order := range []string{"age", "waiting", "expiry"} {
		got := decode[locks](t, s.get("/api/locks?limit=4&order="+order).want(200).body)
		if len(got.Locks) != 4 || !got.More {
			t.Errorf("by %s: %d holders, more: %v; want 4, and more", order, len(got.Locks), got.More)
		}
	}
}

func TestOneLockIsExplainedWithoutTheStatementsOfOthers(t *testing.T) {
	t.Parallel()
	s := start(t, withOnError(func(err error) { t.Error(err) }))
	s.hold("app-1", "nightly")
	r := s.get("/api/lock?name=nightly").want(200, `"why":{"state":"held"`, `"verdicts":[{`)
	if strings.Contains(r.body, "processes") || strings.Contains(r.body, "query") {
		t.Errorf("%s", r.body)
	}
	if data := s.stream("/api/stream?name=nightly").next("lock"); !strings.Contains(data, `"verdicts":[{`) {
		t.Errorf("%s", data)
	}
}

func TestTheHistoryHasPages(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	for range 3 {
		lease := s.hold("app-1", "nightly")
		s.tryBreak(request{"nightly", fmt.Sprint(lease.Token()), "stuck"}).want(200)
	}
	type history struct {
		Events []struct {
			ID, Kind  string
			GrantedAt time.Time `json:"granted_at"`
			EndedAt   time.Time `json:"ended_at"`
		}
		More  bool
		Level string
	}
	got := decode[history](t, s.get("/api/history?name=nightly&limit=2", asAlice).want(200).body)
	if len(got.Events) != 2 || !got.More || got.Level != "losses" ||
		got.Events[0].EndedAt.Before(got.Events[0].GrantedAt) || got.Events[0].GrantedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	got = decode[history](t, s.get("/api/history?limit=2&before="+got.Events[1].ID, asAlice).want(200).body)
	if len(got.Events) != 1 || got.More || got.Events[0].Kind != "break" {
		t.Errorf("%+v", got)
	}
}

func TestTheListSaysWhetherHoldersLive(t *testing.T) {
	t.Parallel()
	s, statements := counted(t)
	s.many(300, "")
	s.execute(`UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 min' WHERE name <> 'lock 00001'`)
	type lives struct{ Locks []struct{ Name, Life string } }
	before := statements.all.Load()
	got := decode[lives](t, s.get("/api/locks?limit=1000").want(200).body)
	const most = 12 + (20+50)*14 // the lists; and for those that may not be well: twenty of all, and fifty of the list
	if n := statements.all.Load() - before; n > most {
		t.Errorf("a list of %d locks takes %d statements, want %d at most", len(got.Locks), n, most)
	}
	for _, l := range got.Locks {
		want := "silent"
		if l.Name == "lock 00001" {
			want = "unknown"
		}
		if l.Life != want {
			t.Errorf("%s: %q, want %q", l.Name, l.Life, want)
		}
	}
	s.execute("SELECT pglock.break_lock('lock 00001', 'it is to be free', 'me')")
	got = decode[lives](t, s.get("/api/locks?free=1&match=00001").want(200).body)
	if len(got.Locks) != 1 || got.Locks[0].Life != "" {
		t.Errorf("%+v, want a free lock without a life", got)
	}
}

// The place is on the page and in the answers, whether it has a title or not.
func TestThePageHasItsPlace(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]setting{nil, {withTitle("production")}} {
		s := start(t, opts...)
		place, title := s.admin.Place(), "production"
		if opts == nil {
			title = place.String()
		}
		s.get("/").want(200, `<meta name="pglock-server" content="`+place.Server+`">`,
			`<meta name="pglock-database" content="`+place.Database+`">`,
			`<meta name="pglock-schema" content="pglock">`)
		if got := decode[locks](t, s.get("/api/locks").want(200).body); got.Server != title {
			t.Errorf("the server of the list is %q, want %q", got.Server, title)
		}
	}
}

// Somebody who has locked a whole table keeps everybody from all locks; the page says who.
func TestTheListSaysWhoHasLockedAWholeTable(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"locks", "fences"} { // without the history, events, all goes on
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.hold("app-1", "nightly")
			tx := must.Get(s.db.Conn(t).Begin(t.Context()))(t)
			defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is lost
			must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock."+table))(t)
			pgtest.Eventually(t, "the lock to have lasted", func() bool {
				got := decode[locks](t, s.get("/api/locks").want(200).body)
				return len(got.Locks) == 0 && len(got.Ill.Locks) == 1 && got.Ill.Locks[0].Lock == "" &&
					got.Ill.Locks[0].Severity == "stuck" && got.Ill.Locks[0].Kind == "table" && !got.Ill.All
			})
		})
	}
}

// A command of pglock-admin that people copy names the schema, unless that is the usual one.
func TestCommandsOfThePageNameTheSchema(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	const schema = "other locks"
	must.Do(t, migrations.Up(t.Context(), pool, migrations.WithSchema(schema)))
	usual := startOver(t, db, pool)
	admin := must.Get(lockadmin.New(t.Context(), pool, lockadmin.WithSchema(schema)))(t)
	page := must.Get(dashboard.New(admin, dashboard.Config{Anybody: true}))(t)
	defer page.Close()
	for schemaOf, handler := range map[string]http.Handler{"pglock": usual.page, schema: page} {
		usual.execute(fmt.Sprintf(
			"SELECT %q.acquire_lease('nightly', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')", schemaOf))
		usual.execute(fmt.Sprintf("UPDATE %q.locks SET acquired_at = clock_timestamp() - interval '1 min'", schemaOf))
		answer := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/lock?name=nightly", nil)
		handler.ServeHTTP(answer, request)
		body := answer.Body.String()
		named := strings.Contains(body, "gives no sign of life for 1m' --schema 'other locks'")
		if !strings.Contains(body, "break nightly --token ") || named != (schemaOf == schema) {
			t.Errorf("of schema %s: %s", schemaOf, body)
		}
	}
}

// The entry more that tells whether it is all is one of the most that a list may have.
func TestTheLongestPageOfAnOrderSaysThatThereIsMore(t *testing.T) {
	t.Parallel()
	s := start(t)
	if _, err := s.db.Conn(t).Exec(t.Context(), `INSERT INTO pglock.locks
		(name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
		SELECT 'a' || n, n, gen_random_uuid(), gen_random_uuid(), 'h', '1 h', now(), now(), now() + interval '1 h'
		FROM generate_series(1, 10001) n`); err != nil {
		t.Fatal(err)
	}
	if got := decode[locks](t, s.get("/api/locks?order=age&limit=10000").want(200).body); !got.More {
		t.Errorf("%d locks, and no more", len(got.Locks))
	}
}
