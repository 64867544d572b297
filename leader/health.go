package leader

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// State is what a candidate does.
type State string

// The states of a candidate.
const (
	StateIdle        State = "idle"        // Run does not run
	StateCampaigning State = "campaigning" // it waits, or was refused and will try again
	StateLeading     State = "leading"     // fn runs
	StateStopping    State = "stopping"    // fn was asked to stop and still runs; the lock is kept
	StateDeposed     State = "deposed"     // leadership was lost or given up, and fn still runs
)

// Status is what a candidate knows of itself, without asking the server.
type Status struct {
	Lock  string
	State State
	Since time.Time    // when the state began, by the local clock
	Token pglock.Token // of fn's lease, while fn runs; else 0
	Err   error        // of the last campaign or call of fn, if that failed
}

// Status returns what the candidate does.
func (c *Candidate) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock() // until the lease has told whether it has ended: after fn it ends because Run releases it
	s := Status{Lock: c.name, State: StateIdle, Since: c.since, Err: c.failure}
	if c.lease == nil {
		if c.running {
			s.State = StateCampaigning
		}
		return s
	}
	s.State, s.Token = StateLeading, c.lease.Token()
	switch {
	case c.lease.Err() != nil: // fn runs: whoever released the lock, Run has not
		s.State, s.Since = StateDeposed, c.ended
	case !c.told.IsZero():
		s.State, s.Since = StateStopping, c.told
	default:
		return s
	}
	if s.Since.IsZero() { // the lease has ended just now
		s.Since = time.Now()
	}
	return s
}

// Health answers probes, such as a liveness probe of Kubernetes, without asking a server. The status code is 503
// (Service Unavailable) if leadership was lost longer ago than the tolerance (WithTolerance) and fn still runs: then
// only a restart stops the work. The same holds if this process has given the lock up, as by closing the client. In any
// other state it is 200, also when this candidate does not lead. The body is one line of JSON:
//
//	{"lock":"leader/scheduler","state":"leading","since":"2026-01-02T15:04:05.123Z","token":41}
//
// state is one of the constants State…, and since is by the local clock. token is present while fn runs, and error if
// Status has one. Health answers any method but GET and HEAD with 405.
func (c *Candidate) Health() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		s := c.Status()
		body := struct {
			Lock  string       `json:"lock"`
			State State        `json:"state"`
			Since time.Time    `json:"since"`
			Token pglock.Token `json:"token,omitempty"`
			Error string       `json:"error,omitempty"`
		}{s.Lock, s.State, s.Since.UTC(), s.Token, ""}
		if s.Err != nil {
			body.Error = s.Err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if s.State == StateDeposed && time.Since(s.Since) > c.config.tolerance {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(body)
	})
}
