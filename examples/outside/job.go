//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/pglock"
)

// A file is replaced as a whole. While a writer compares the old content and renames the new file into place, it locks
// a second file beside it (flock). So the two are one step. The new file has the old one's mode, not its owner.
type file struct{ path string }

// content is what a file has, or that there is none.
type content struct {
	text  string
	there bool
}

var errChanged = errors.New("somebody else has written since it was read")

func (f file) read() (content, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return content{}, nil
	}
	return content{string(b), true}, err
}

// update replaces the content by what change makes of it, unless change fails.
func (f file) update(ctx context.Context, change func(now content) (content, error)) error {
	lock, err := os.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select { // another writer compares and renames, which does not take long
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	now, err := f.read()
	if err != nil {
		return err
	}
	next, err := change(now)
	if err != nil || next == now {
		return err
	}
	if !next.there {
		return os.Remove(f.path)
	}
	temporary := f.path + ".new"
	if err := os.WriteFile(temporary, []byte(next.text), 0o600); err != nil {
		return err
	}
	if now.there {
		old, err := os.Stat(f.path)
		if err == nil {
			err = os.Chmod(temporary, old.Mode())
		}
		if err != nil {
			return err
		}
	}
	return os.Rename(temporary, f.path)
}

// replace is the operation that writes text into the file: reversible.Run(ctx, lease, replace(f, text)). No other
// writer may write the same text, so it contains the token. Apply replaces only what Capture has read, and Restore
// replaces only what Apply has written.
func replace(f file, text string) reversible.Operation {
	var before content
	ours := content{text, true}
	wrote := false // true as soon as Apply may have written
	return reversible.Operation{
		Capture: func(context.Context) (err error) {
			before, err = f.read()
			return err
		},
		Apply: func(ctx context.Context) error {
			return f.update(ctx, func(now content) (content, error) {
				if now != before {
					return now, errChanged
				}
				wrote = true
				return ours, nil
			})
		},
		Restore: func(ctx context.Context) error {
			if !wrote {
				return nil
			}
			return f.update(ctx, func(now content) (content, error) {
				if now != before && now != ours {
					return now, fmt.Errorf("%w: there is %q", reversible.ErrOvertaken, now.text)
				}
				return before, nil
			})
		},
	}
}

// put sends the text to the service with the token of the lease. web has a fencedhttp.Transport. The error is
// pglock.ErrLost when the lease is lost, also in the middle of the request, and a *fencedhttp.RefusedError when the
// service has seen a greater token.
func put(ctx context.Context, web *http.Client, lease *pglock.Lease, url, text string) error {
	ctx, cancel := context.WithCancelCause(fencedhttp.ContextWithLease(ctx, lease))
	defer cancel(nil)
	defer context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(text))
	if err != nil {
		return err
	}
	response, err := web.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := fencedhttp.Refusal(response); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// protect is for the service: it refuses a request with a lower token than it has seen. It keeps the tokens in a table.
// A request waits until this process, not another of the service, has done those with lower tokens. The limit is for
// the wait and the work together.
func protect(ctx context.Context, pool *pgxpool.Pool, service http.Handler, limit time.Duration) (http.Handler, error) {
	tokens, err := fencedhttp.NewTableStore(pool, pgx.Identifier{"page_tokens"})
	if err != nil {
		return nil, err
	}
	if err := tokens.Create(ctx); err != nil {
		return nil, err
	}
	verifier := &fencedhttp.Verifier{Store: tokens, Serialize: true,
		Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil }}
	return http.TimeoutHandler(verifier.Middleware(service), limit, ""), nil
}
