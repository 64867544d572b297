package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// answerWithin limits how long a client may take to read an answer.
const answerWithin = 30 * time.Second

// hurry begins that time. The host's server may not know how.
func hurry(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin))
}

// policy lets the page use its own files and data, and nothing else; nobody may put the page into a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// route is what there is at an address.
type route struct {
	method string // GET, which includes HEAD, or POST
	serve  func(http.ResponseWriter, *http.Request, Identity) error
}

func (d *Dashboard) allRoutes() map[string]route {
	return map[string]route{
		"":             {http.MethodGet, d.servePage},
		"api/locks":    {http.MethodGet, d.serveLocks},
		"api/lock":     {http.MethodGet, d.serveLock},
		"api/history":  {http.MethodGet, d.serveHistory},
		"api/sessions": {http.MethodGet, d.serveSessions},
		"api/stream":   {http.MethodGet, d.serveStream},
		"api/break":    {http.MethodPost, d.serveBreak},
	}
}

// distrust tells browsers to trust nothing that comes from elsewhere, and to keep nothing.
func distrust(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// ServeHTTP serves the page at "/". Mount it under a prefix with http.StripPrefix("/admin/locks", d), for
// "/admin/locks" and everything below.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	distrust(w.Header())
	if r.ContentLength != 0 { // the server reads what is left of a body before it answers
		// the host's server may not know how
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d.config.pace.body))
	}
	if err := d.serve(w, r); err != nil {
		d.explain(err).write(w)
	}
}

// serve writes an answer, or returns why there is none.
func (d *Dashboard) serve(w http.ResponseWriter, r *http.Request) error {
	who, err := d.authenticate(w, r)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	at, found := d.routes[name]
	switch {
	case r.URL.Path == "": // relative addresses need the slash
		at = route{http.MethodGet, withSlash}
	case strings.HasPrefix(name, "assets/"):
		at = route{http.MethodGet, d.serveFile}
	case !found:
		return notFound
	}
	if err := methodIs(w, r, at.method); err != nil {
		return err
	}
	return at.serve(w, r, who)
}

// methodIs refuses a request with another method, or with a body where there should be none.
func methodIs(w http.ResponseWriter, r *http.Request, method string) error {
	allow := shown.Either(method == http.MethodGet, "GET, HEAD", method)
	switch {
	case r.Method != method && !(method == http.MethodGet && r.Method == http.MethodHead):
		w.Header().Set("Allow", allow)
		return refused(http.StatusMethodNotAllowed, "This address takes "+allow+" only.")
	case method == http.MethodGet && r.ContentLength != 0:
		return refused(http.StatusRequestEntityTooLarge, "This address takes no body.")
	}
	return nil
}

// withSlash sends the browser to the same address with a slash. The handler does not know its prefix, so the new
// address is relative to the old one.
func withSlash(w http.ResponseWriter, r *http.Request, _ Identity) error {
	asked, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return notFound
	}
	last := asked.EscapedPath()
	last = last[strings.LastIndexByte(last, '/')+1:]
	to := "./" + last
	if last != "" {
		to += "/"
	}
	if asked.RawQuery != "" {
		to += "?" + asked.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusTemporaryRedirect)
	return nil
}
