package dashboard_test

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// Who may do what, with each kind of authentication.
func TestWhoMayLookAndWhoMayBreak(t *testing.T) {
	t.Parallel()
	over := start(t)
	const bearer = "Authorization: Bearer "
	auth := func(r *http.Request) (dashboard.Identity, error) {
		switch who := r.Header.Get("X-Test-User"); who {
		case "":
			return dashboard.Identity{}, errors.New("the session table is on fire")
		case "guest":
			return dashboard.Identity{}, dashboard.ErrForbidden
		case "nameless":
			return dashboard.Identity{MayBreak: true}, nil
		case "long":
			return dashboard.Identity{Name: strings.Repeat("x", 257), MayBreak: true}, nil
		default:
			return dashboard.Identity{Name: who, MayBreak: who == "operator"}, nil
		}
	}
	host := func(c *dashboard.Config) { c.Auth = auth }
	robot := withPerson(dashboard.Person{Name: "robot", Secret: "0123456789abcdef", Token: true})
	for _, one := range []struct {
		what     string
		opts     []setting
		header   string
		status   int
		mayBreak bool
	}{
		{"nothing is asked", nil, "", 200, false},
		{"nothing is asked, and something shown", nil, asAlice, 200, false},
		{"no password", []setting{withAlice, withBreaks}, "", 401, false},
		{"a wrong password", []setting{withAlice, withBreaks}, basic("alice", "wrong horse"), 401, false},
		{"the beginning of the password", []setting{withAlice, withBreaks}, basic("alice", "correct hors"), 401,
			false},
		{"somebody else's name", []setting{withAlice, withBreaks}, basic("bob", "correct horse"), 401, false},
		{"no name", []setting{withAlice, withBreaks}, basic("", "correct horse"), 401, false},
		{"a password as a token", []setting{withAlice, withBreaks}, bearer + "correct horse", 401, false},
		{"a long password", []setting{withAlice, withBreaks}, basic("alice", strings.Repeat("x", 5000)), 401,
			false},
		{"what is no base64", []setting{withAlice, withBreaks}, "Authorization: Basic %%%", 401, false},
		{"the password", []setting{withAlice, withBreaks}, asAlice, 200, true},
		{"the password, read-only", []setting{withAlice}, asAlice, 200, false},
		{"the second of two people", []setting{robot, withAlice, withBreaks}, asAlice, 200, true},
		{"the token", []setting{robot, withAlice, withBreaks}, bearer + "0123456789abcdef", 200, true},
		{"the token in lower case", []setting{robot, withBreaks}, "Authorization: bearer 0123456789abcdef", 200,
			true},
		{"the token as a password", []setting{robot, withBreaks}, basic("anybody", "0123456789abcdef"), 200, true},
		{"a wrong token", []setting{robot, withBreaks}, bearer + "0123456789abcdeF", 401, false},
		{"an empty token", []setting{robot, withBreaks}, bearer, 401, false},
		{"the host's error", []setting{host, withBreaks}, "", 401, false},
		{"the host's refusal", []setting{host, withBreaks}, "X-Test-User: guest", 403, false},
		{"a reader", []setting{host, withBreaks}, "X-Test-User: reader", 200, false},
		{"an operator", []setting{host, withBreaks}, "X-Test-User: operator", 200, true},
		{"an operator, read-only", []setting{host}, "X-Test-User: operator", 200, false},
		{"somebody without a name", []setting{host, withBreaks}, "X-Test-User: nameless", 200, false},
		{"a name that the history cannot take", []setting{host, withBreaks}, "X-Test-User: long", 401, false},
	} {
		t.Run(one.what, func(t *testing.T) {
			s := startOver(t, over.db, over.pool, one.opts...)
			var headers []string
			if one.header != "" {
				headers = append(headers, one.header)
			}
			for _, path := range []string{"/", "/assets/none", "/api/locks", "/api/lock?name=a", "/api/history",
				"/api/sessions", "/api/stream?order=x", "/none"} {
				r := s.get(path, headers...)
				if refused := r.status == 401 || r.status == 403; refused != (one.status != 200) || refused &&
					r.status != one.status {
					t.Errorf("%s: status %d: %s", path, r.status, r.body)
				}
				if strings.Contains(r.body, "fire") || one.status != 200 && strings.Contains(r.body, "alice") {
					t.Errorf("%s tells too much: %s", path, r.body)
				}
			}
			if one.status != 200 {
				r := s.ask(http.MethodPost, "/api/break", "{}", headers...).want(one.status)
				if asks := r.header.Get("WWW-Authenticate") != ""; asks != (len(one.opts) > 0 && one.status == 401 &&
					r.header.Get("WWW-Authenticate") != "") {
					t.Errorf("%v", r.header)
				}
				return
			}
			if got := decode[locks](t, s.get("/api/locks", headers...).body); got.CanBreak != one.mayBreak {
				t.Errorf("can break: %v", got.CanBreak)
			}
			want := 403
			if one.mayBreak {
				want = 404
			}
			s.ask(http.MethodPost, "/api/break", `{"name":"nothing","token":"1","reason":"a test"}`,
				append(headers, "Content-Type: application/json")...).want(want)
		})
	}
}

func TestABrowserIsAskedForNameAndPasswordAndNotMore(t *testing.T) {
	t.Parallel()
	s := start(t, withAlice)
	r := s.get("/", basic("alice", "wrong horse")).want(401)
	if r.header.Get("WWW-Authenticate") != `Basic realm="pglock", charset="UTF-8"` ||
		r.body != `{"error":"Log in first."}` {
		t.Errorf("%v %s", r.header, r.body)
	}
	if other := s.get("/", basic("nobody", "wrong horse")); other.body != r.body {
		t.Errorf("an unknown name is answered with %s", other.body)
	}
}

func TestProtectAsksForTheSame(t *testing.T) {
	t.Parallel()
	s := start(t, withAlice)
	protected := s.page.Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("numbers"))
	}))
	s.http.Config.Handler = protected
	for _, r := range []reply{s.get("/").want(401), s.get("/", asAlice).want(200, "numbers")} {
		if r.header.Get("Content-Security-Policy") != dashboard.Policy || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("status %d: headers %v", r.status, r.header)
		}
	}
}

// hasty has no patience with readers, so that a test need not have it.
type hasty struct{ http.ResponseWriter }

func (h hasty) SetWriteDeadline(time.Time) error {
	return http.NewResponseController(h.ResponseWriter).SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
}

// A handler such as that of metrics serves a limited number of requests at once.
func TestProtectEndsAnswersThatNobodyReads(t *testing.T) {
	t.Parallel()
	s := start(t)
	ended := make(chan struct{})
	protected := s.page.Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for piece := make([]byte, 64<<10); ; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}))
	s.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protected.ServeHTTP(hasty{w}, r)
	})
	conn := must.Get(net.Dial("tcp", s.http.Listener.Addr().String()))(t)
	defer conn.Close()
	must.Get(conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")))(t)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the answer does not end")
	}
}
