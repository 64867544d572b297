package main

import (
	"context"
	"net/http"
	"time"

	"github.com/pglock-dev/pglock/lockadmin"
)

// The database is asked at most once in this time, whoever asks for the health, and has so long to answer.
const (
	healthFor    = time.Second
	healthWithin = 2 * time.Second
)

// health answers probes.
type health struct {
	admin *lockadmin.Admin
	turn  chan struct{} // holds one entry while somebody asks the database; guards the rest
	at    time.Time
	err   error
}

func newHealth(admin *lockadmin.Admin) *health {
	return &health{admin: admin, turn: make(chan struct{}, 1)}
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "This address takes GET and HEAD only.", http.StatusMethodNotAllowed)
		return
	}
	if h.ask(r.Context()) != nil {
		http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // a probe that is gone does not read it
}

// ask reads one lock. A probe that leaves does not end the question, because others wait for its answer.
func (h *health) ask(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if time.Since(h.at) < healthFor {
		return h.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthWithin)
	defer cancel()
	_, _, h.err = first(1, h.admin.Locks(ctx, lockadmin.WithPageSize(1)))
	h.at = time.Now()
	return h.err
}
