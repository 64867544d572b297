package dashboard_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// breaking starts a page on which alice may break locks.
func breaking(t *testing.T) *stage {
	t.Helper()
	return start(t, withAlice, withBreaks)
}

type request struct {
	Name   string `json:"name"`
	Token  any    `json:"token"`
	Reason string `json:"reason"`
}

func TestABreakEndsTheLeaseAndTheHistoryNamesWhoDidIt(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	lease := s.hold("app-1", hostile)
	token := fmt.Sprint(lease.Token())
	got := decode[struct {
		Broken struct {
			Name, Holder, Token string
			NewToken            string `json:"new_token"`
		}
	}](t, s.tryBreak(request{hostile, token, "its host is gone"}).want(200).body)
	if got.Broken.Name != hostile || got.Broken.Holder != "app-1" || got.Broken.Token != token ||
		got.Broken.NewToken == "" {
		t.Errorf("%+v", got)
	}
	history := decode[struct {
		Events []struct{ ID, Kind, Token, Actor, Reason string }
	}](t, s.get("/api/history?name="+escape(hostile), asAlice).want(200).body)
	if len(history.Events) != 1 || history.Events[0].Actor != "alice" ||
		history.Events[0].Reason != "its host is gone" || history.Events[0].Token != token {
		t.Errorf("%+v", history)
	}
	s.get("/api/lock?name="+escape(hostile), asAlice).want(200, `"holders":[]`)
}

func TestABreakOfWhatHasMovedOnIsRefused(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	old := s.hold("app-1", "nightly")
	stale := fmt.Sprint(old.Token())
	must.Do(t, old.Release(t.Context()))
	s.tryBreak(request{"nightly", stale, "stuck"}).want(409, "not held any more")
	next := s.hold("app-2", "nightly")
	s.tryBreak(request{"nightly", stale, "stuck"}).want(409, "moved on")
	s.tryBreak(request{"nothing", "1", "stuck"}).want(404, "no lock of this name")
	s.get("/api/lock?name=nightly", asAlice).want(200, fmt.Sprintf(`"token":"%d"`, next.Token()), `"held":true`)
}

func TestABreakTakesTheTokenAsATextOrANumber(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	lease := s.hold("app-1", "nightly")
	s.tryBreak(request{"nightly", int64(lease.Token()), "stuck"}).want(200)
}

func TestAWrongRequestToBreakBreaksNothing(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	lease := s.hold("app-1", "nightly")
	token := fmt.Sprint(lease.Token())
	for want, r := range map[string]request{
		`"field":"reason"`:                   {"nightly", token, ""},
		`that are not all blank`:             {"nightly", token, " \t\n"},
		`have 1 to 1024 bytes`:               {"nightly", token, strings.Repeat("x", 1025)},
		`"field":"name"`:                     {"", token, "stuck"},
		`have 1 to 512 bytes`:                {strings.Repeat("x", 513), token, "stuck"},
		`"field":"token"`:                    {"nightly", "", "stuck"},
		`be greater than 0`:                  {"nightly", "-1", "stuck"},
		`"value":"0"`:                        {"nightly", "0", "stuck"}, // nobody's, and not the lock's only lease
		`be the token of the lease to break`: {"nightly", 1.5, "stuck"},
		`"value":"\"99999999999999999999\""`: {"nightly", "99999999999999999999", "stuck"},
		`"value":"\"true\""`:                 {"nightly", true, "stuck"},
	} {
		s.tryBreak(r).want(400, want)
	}
	send := func(body string, headers ...string) reply {
		t.Helper()
		return s.ask(http.MethodPost, "/api/break", body,
			append([]string{asAlice, "Content-Type: application/json"}, headers...)...)
	}
	right := fmt.Sprintf(`{"name":"nightly","token":%q,"reason":"stuck"}`, token)
	send("").want(400)
	send("[]").want(400)
	send(right + right).want(400)
	send(strings.Replace(right, `"name"`, `"force":true,"name"`, 1)).want(400)
	send(right + strings.Repeat(" ", dashboard.BreakBytes)).want(413)
	send(`{"reason":"` + strings.Repeat("x", dashboard.BreakBytes) + `"}`).want(413)
	send(right, "Content-Type: text/plain").want(415)
	send(right, "Content-Type: application/x-www-form-urlencoded").want(415)
	send(right, "Content-Type: ").want(415)
	if _, err := lease.Check(t.Context()); err != nil {
		t.Errorf("the lease was broken: %v", err)
	}
	send(right, "Content-Type: application/json; charset=utf-8").want(200)
}

func TestRequestsFromOtherSitesBreakNothing(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	own := s.http.URL
	var lease *pglock.Lease
	send := func(kind string, headers ...string) reply {
		t.Helper()
		return s.ask(http.MethodPost, "/api/break",
			fmt.Sprintf(`{"name":"nightly","token":"%d","reason":"stuck"}`, lease.Token()),
			append([]string{asAlice, "Content-Type: " + kind}, headers...)...)
	}
	const right = "application/json"
	lease = s.hold("app-1", "nightly")
	for _, headers := range [][]string{
		{"Sec-Fetch-Site: cross-site"}, {"Sec-Fetch-Site: same-site"}, {"Sec-Fetch-Site: nonsense"},
		{"Sec-Fetch-Site: cross-site", "Origin: " + own},
		{"Origin: https://evil.example"}, {"Origin: null"}, {"Origin: " + own + ".evil.example"},
		{"Origin: http://localhost:1"},
	} {
		send(right, headers...).want(403, "another site")
	}
	// A browser that says neither sends another origin only these types, unless that origin allows more.
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded",
		"multipart/form-data; boundary=x"} {
		send(kind).want(415)
	}
	allows := s.ask(http.MethodOptions, "/api/break", "", "Origin: https://evil.example",
		"Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type").header
	for name := range allows {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("it allows other origins: %s", name)
		}
	}
	for _, method := range []string{"GET", "HEAD"} { // these never change anything
		s.ask(method, "/api/break?name=nightly&reason=stuck&token=1", "", asAlice).want(405)
	}
	if _, err := lease.Check(t.Context()); err != nil {
		t.Fatalf("the lease was broken: %v", err)
	}
	for _, headers := range [][]string{
		{"Sec-Fetch-Site: same-origin", "Origin: " + own}, {"Sec-Fetch-Site: same-origin"}, {"Origin: " + own},
		nil, // a program
	} {
		send(right, headers...).want(200)
		lease = s.hold("app-1", "nightly")
	}
}

func TestABreakWithoutTheRoleSaysWhichOne(t *testing.T) {
	db := pgtest.Parallel(t)
	user := "pglock_reader_" + db.Name()
	conn := db.Conn(t)
	role := pgx.Identifier{user}.Sanitize()
	if _, err := conn.Exec(t.Context(), "CREATE ROLE "+role+
		" LOGIN PASSWORD 'secret' IN ROLE pglock_user"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	pool := db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = user, "secret" })
	s := startOver(t, db, pool, withAlice, withBreaks)
	lease := s.hold("app-1", "nightly")
	s.get("/api/locks", asAlice).want(200, "nightly")
	s.get("/api/history?name=nightly", asAlice).want(403, "pglock_admin")
	s.tryBreak(request{"nightly", fmt.Sprint(lease.Token()), "stuck"}).want(403, "pglock_admin")
	if _, err := lease.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A page whose address leads to another database now breaks nothing there.
func TestABreakForAnotherPlaceIsRefused(t *testing.T) {
	t.Parallel()
	s := breaking(t)
	lease := s.hold("app-1", "nightly")
	own := decode[struct{ Place string }](t, s.get("/api/locks", asAlice).want(200).body).Place
	if own != s.admin.Place().String() {
		t.Errorf("the list is of %q, want %q", own, s.admin.Place())
	}
	send := func(place string) reply {
		t.Helper()
		return s.tryBreak(map[string]string{"name": "nightly", "token": fmt.Sprint(lease.Token()), "reason": "stuck",
			"place": place})
	}
	send(own+"_staging").want(409, "another database now: "+own+". Nothing was broken.")
	if _, err := lease.Check(t.Context()); err != nil {
		t.Errorf("the lease was broken: %v", err)
	}
	titled := startOver(t, s.db, s.pool, withAlice, withBreaks, withTitle("staging\n2"))
	titled.tryBreak(map[string]string{"name": "nightly", "token": fmt.Sprint(lease.Token()), "reason": "stuck",
		"place": own}).want(409, `another database now: staging\\n2: `+own)
	send(own).want(200)
}

// Two databases may have the same words, as behind tunnels, and leases with the same name and token.
func TestABreakOfALeaseInAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	here, db := breaking(t), pgtest.Database(t)
	there := startOver(t, db, db.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.Database = here.db.Name()
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.Database = db.Name(); return nil }
	}), withAlice, withBreaks)
	lease, same := here.hold("app-1", "nightly"), there.hold("app-1", "nightly")
	if here.admin.Place() != there.admin.Place() || lease.Token() != same.Token() {
		t.Fatalf("%v, token %d; %v, token %d", here.admin.Place(), lease.Token(), there.admin.Place(), same.Token())
	}
	seen := decode[struct {
		Place string
		Lock  struct {
			AcquiredAt string `json:"acquired_at"`
		}
	}](t, here.get("/api/lock?name=nightly", asAlice).want(200).body)
	request := map[string]string{"name": "nightly", "token": fmt.Sprint(lease.Token()), "reason": "stuck",
		"place": seen.Place, "acquired_at": seen.Lock.AcquiredAt}
	there.tryBreak(request).want(409, "another one than you see", "Nothing was broken")
	if _, err := same.Check(t.Context()); err != nil {
		t.Errorf("the lease was broken: %v", err)
	}
	here.tryBreak(request).want(200)
	here.tryBreak(request).want(409, "not held any more")
	request["name"] = "nothing"
	here.tryBreak(request).want(404, "no lock of this name")
	request["acquired_at"] = "yesterday"
	here.tryBreak(request).want(400, `"field":"body"`)
}

// A body that does not come is waited for only for a while, also where nobody reads it.
func TestASlowBodyIsCutOff(t *testing.T) {
	t.Parallel()
	s := start(t, withAlice, withBreaks, func(c *dashboard.Config) { c.SetBodyTime(200 * time.Millisecond) })
	begin := "Host: x\r\nContent-Length: 100\r\nContent-Type: application/json\r\n"
	for request, want := range map[string]string{
		"POST /api/break HTTP/1.1\r\n" + begin + asAlice + "\r\n\r\n{": "408",
		"POST /api/break HTTP/1.1\r\n" + begin + "\r\n{":               "401",
		"GET /api/stream HTTP/1.1\r\n" + begin + asAlice + "\r\n\r\n{": "413",
		"POST /none HTTP/1.1\r\n" + begin + asAlice + "\r\n\r\n{":      "404",
	} {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.http.URL, "http://")))(t)
		defer conn.Close()
		must.Do(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		fmt.Fprint(conn, request)
		answer, err := io.ReadAll(conn) // until the server closes the connection
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+want+" ") {
			t.Errorf("%v: %s, want %s", err, answer, want)
		}
	}
}

// The page says who is logged in. In another tab somebody else has logged in since.
func TestABreakInAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, withAlice, withPerson(dashboard.Person{Name: "bob", Secret: "battery staple"}), withBreaks)
	lease := s.hold("app-1", "nightly")
	request := map[string]string{"name": "nightly", "token": fmt.Sprint(lease.Token()), "reason": "stuck",
		"user": "alice"}
	asBob := basic("bob", "battery staple")
	s.get("/", asAlice).want(200, `name="pglock-user" content="alice"`)
	for _, request["user"] = range []string{"alice", ""} { // "": the page was loaded before anybody had logged in
		s.tryBreak(request, asBob).want(409, "The history would now name bob. Nothing was broken.")
	}
	if _, err := lease.Check(t.Context()); err != nil {
		t.Errorf("the lease was broken: %v", err)
	}
	request["user"] = "alice"
	s.tryBreak(request).want(200)
	s.get("/api/history?name=nightly", asAlice).want(200, `"actor":"alice"`)
}
