package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/singleflight"

	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// Health makes the handler of /healthz. It answers 200 and "ok" when the database answers, takes writes and has a
// schema that fits; otherwise 503 and a reason that names no host, user or password. Simultaneous requests share one
// question. The Admin stays the caller's.
//
// Errors: pglock.ErrInvalid.
func Health(admin *lockadmin.Admin, c Config) (http.Handler, error) {
	if err := c.check(admin); err != nil {
		return nil, err
	}
	c.Timeout = min(c.Timeout, healthPatience)
	var asking singleflight.Group
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		_, err, _ := asking.Do("", func() (any, error) {
			ctx, cancel := within(c.Timeout)
			defer cancel()
			err := admin.Ping(ctx)
			if err != nil {
				c.OnError(err)
			}
			return nil, err
		})
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, reason(err, c)+"\n")
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}), nil
}

// reason says what is wrong to whoever asks, and nothing about how this process connects.
func reason(err error, c Config) string {
	switch {
	case errors.Is(err, pglock.ErrSchema):
		return "the schema is missing, or does not fit this program: run pglock-admin doctor"
	case errors.Is(err, pglock.ErrPermission):
		return "the database user may not use the schema: grant it pglock_user"
	case errors.Is(err, pglock.ErrReadOnly):
		return "the database takes no writes: it is a standby, or the session is read-only"
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the database did not answer within %s", c.Timeout)
	default:
		return "no connection to the database"
	}
}
