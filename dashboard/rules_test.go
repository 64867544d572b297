package dashboard_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/lockadmin"
)

func TestEveryAnswerTellsBrowsersToTrustNothingElse(t *testing.T) {
	t.Parallel()
	s := start(t, withAlice)
	for _, path := range []string{"/", "/api/locks", "/api/lock?name=none", "/api/locks?limit=x", "/nothing",
		"/assets/nothing", "/api/break"} {
		for _, r := range []reply{s.get(path), s.get(path, asAlice)} {
			for name, want := range map[string]string{
				"Content-Security-Policy":      dashboard.Policy,
				"X-Content-Type-Options":       "nosniff",
				"X-Frame-Options":              "DENY",
				"Referrer-Policy":              "no-referrer",
				"Cross-Origin-Opener-Policy":   "same-origin",
				"Cross-Origin-Resource-Policy": "same-origin",
				"Cache-Control":                "no-store",
			} {
				if got := r.header.Get(name); got != want {
					t.Errorf("%s, status %d: %s is %q, want %q", path, r.status, name, got, want)
				}
			}
			if path != "/" && r.header.Get("Content-Type") != "application/json; charset=utf-8" {
				t.Errorf("%s, status %d: type %s", path, r.status, r.header.Get("Content-Type"))
			}
		}
	}
	for _, rule := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'",
		"base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(dashboard.Policy, rule) || strings.Contains(dashboard.Policy, "unsafe") {
			t.Errorf("the policy %q lacks %q, or has an exception", dashboard.Policy, rule)
		}
	}
}

func TestThePageHasNoScriptOfItsOwnAndLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	s := start(t)
	page := s.get("/").want(200).body
	for _, wrong := range []string{`<script(?:\s[^>]*)?>[^<]`, `(?i)\son\w+\s*=`, `(?i)\sstyle\s*=`, `(?i)<style`,
		`(?i)javascript:`} {
		if found := regexp.MustCompile(wrong).FindString(page); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
	addresses := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page, -1)
	for _, a := range addresses {
		if strings.HasPrefix(a[1], "#") {
			continue
		}
		if strings.HasPrefix(a[1], "/") || strings.Contains(a[1], ":") {
			t.Errorf("the page loads %s, which is no relative address", a[1])
		}
		r := s.get("/" + a[1]).want(200)
		for _, far := range regexp.MustCompile(`(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}[^\s'"]*`).FindAllString(r.body,
			-1) {
			if !strings.HasPrefix(far, "http://www.w3.org/") {
				t.Errorf("%s names %s", a[1], far)
			}
		}
	}
}

func TestFilesHaveETags(t *testing.T) {
	t.Parallel()
	s := start(t)
	names := dashboard.Files()
	if len(names) == 0 {
		t.Fatal("there are no files")
	}
	for _, name := range names {
		path := "/assets/" + name
		first := s.get(path).want(200)
		tag := first.header.Get("ETag")
		if tag == "" || first.header.Get("Cache-Control") != "private, no-cache" ||
			first.header.Get("Content-Type") == "" {
			t.Errorf("%s: %v", path, first.header)
		}
		for _, known := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			if again := s.get(path, "If-None-Match: "+known).want(304); again.body != "" ||
				again.header.Get("ETag") != tag {
				t.Errorf("%s: %q, %v", path, again.body, again.header)
			}
		}
		s.get(path, `If-None-Match: "other"`).want(200)
		if head := s.ask(http.MethodHead, path, "").want(200); head.body != "" ||
			head.header.Get("Content-Length") == "" {
			t.Errorf("HEAD %s: %v", path, head.header)
		}
	}
	for _, path := range []string{"/assets/", "/assets/index.html", "/assets/../auth.go", "/assets/%2e%2e/auth.go",
		"/assets/..%2fauth.go", "//", "/api", "/api/", "/api/locks/"} {
		s.get(path).want(404)
	}
}

func TestWrongMethodsSayWhichAreRight(t *testing.T) {
	t.Parallel()
	s := start(t, withAlice, withBreaks)
	for path, allow := range map[string]string{
		"/": "GET, HEAD", "/api/locks": "GET, HEAD", "/api/lock": "GET, HEAD", "/api/history": "GET, HEAD",
		"/api/sessions":       "GET, HEAD",
		"/api/stream?order=x": "GET, HEAD", "/assets/x": "GET, HEAD", "/api/break": "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
			"NONSENSE"} {
			r := s.ask(method, path, "", asAlice)
			if allowed := slices.Contains(strings.Split(allow, ", "),
				method); allowed == (r.status == http.StatusMethodNotAllowed) {
				t.Errorf("%s %s: status %d", method, path, r.status)
			} else if !allowed && r.header.Get("Allow") != allow {
				t.Errorf("%s %s allows %q, want %q", method, path, r.header.Get("Allow"), allow)
			}
		}
	}
}

func TestWrongArgumentsAreNamedWithValueAndRule(t *testing.T) {
	t.Parallel()
	s := start(t)
	long := strings.Repeat("x", 513)
	for path, want := range map[string][3]string{
		"/api/locks?limit=0":                      {"limit", `"0"`, "be from 1 to 10000"},
		"/api/locks?limit=10001":                  {"limit", `"10001"`, "be from 1 to 10000"},
		"/api/locks?limit=ten":                    {"limit", `"ten"`, "be from 1 to 10000"},
		"/api/locks?order=color":                  {"order", `"color"`, "be one of name, age, waiting, expiry"},
		"/api/locks?free=yes":                     {"free", `"yes"`, "be 0 or 1"},
		"/api/locks?match=" + long:                {"match", `"` + long[:40] + `"… (513 bytes)`, "have 1 to 512 bytes"},
		"/api/locks?match=%ff":                    {"match", `"\xff"`, "be valid UTF-8"},
		"/api/locks?match=%00":                    {"match", `"\x00"`, "have no NUL byte"},
		"/api/locks?limit=1&limit=2":              {"limit", "given twice", "be given once"},
		"/api/locks?page=2":                       {"argument", `"page"`, "be one of match, order, free, limit, after"},
		"/api/locks?a=%zz":                        {"query", `"a=%zz"`, "be a valid query string"},
		"/api/lock":                               {"name", "empty", "have 1 to 512 bytes"},
		"/api/lock?name=" + long:                  {"name", `"` + long[:40] + `"… (513 bytes)`, "have 1 to 512 bytes"},
		"/api/history?before=-1":                  {"before", `"-1"`, "be a whole number from 1"},
		"/api/history?before=9999999999999999999": {"before", `"9999999999999999999"`, "be a whole number from 1"},
		"/api/stream?order=color":                 {"order", `"color"`, "be one of name, age, waiting, expiry"},
		"/api/stream?name=a&limit=1":              {"name", `"a"`, "be given alone"},
		"/api/stream?name=":                       {"name", "empty", "have 1 to 512 bytes"},
	} {
		r := s.get(path).want(400)
		got := decode[struct{ Error, Field, Value, Rule string }](t, r.body)
		if [3]string{got.Field, got.Value, got.Rule} != want || got.Error == "" {
			t.Errorf("%.60s: %+v, want %q", path, got, want)
		}
	}
}

func TestNewRefusesAWrongConfig(t *testing.T) {
	t.Parallel()
	noAuth := func(*http.Request) (dashboard.Identity, error) { return dashboard.Identity{}, nil }
	alice := dashboard.Person{Name: "alice", Secret: "correct horse"}
	people := func(all ...dashboard.Person) dashboard.Config { return dashboard.Config{People: all} }
	for want, c := range map[string]dashboard.Config{
		"Auth is nil":               {},
		"Breaks is given alone":     {Breaks: true, Anybody: true},
		"Auth is given with People": {Auth: noAuth, People: []dashboard.Person{alice}},
		"Anybody is given with Aut": {Auth: noAuth, Anybody: true},
		"Anybody is given with Peo": {People: []dashboard.Person{alice}, Anybody: true},
		"People is empty":           {People: []dashboard.Person{}},
		"password is 7 bytes long":  people(dashboard.Person{Name: "a", Secret: "hunter2"}),
		"token is 257 bytes long":   people(dashboard.Person{Name: "a", Secret: strings.Repeat("x", 257), Token: true}),
		`name is "a:b"`:             people(dashboard.Person{Name: "a:b", Secret: "12345678", Token: true}),
		"name is empty":             people(dashboard.Person{Secret: "12345678", Token: true}),
		"it must be given once":     people(alice, alice),
		"streams is -1":             {Streams: -1},
		"connections is 101":        {Connections: 101},
		"(201 bytes): it must have": {Title: strings.Repeat("x", 201)},
	} {
		_, err := dashboard.New(new(lockadmin.Admin), c)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := dashboard.New(nil, dashboard.Config{Anybody: true}); err == nil {
		t.Error("no Admin is no error")
	}
}
