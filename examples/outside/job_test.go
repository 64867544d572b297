//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

func TestFileIsReplacedOnlyFromWhatWasSeen(t *testing.T) {
	t.Parallel()
	f := file{filepath.Join(t.TempDir(), "f")}
	put := func(text string) {
		t.Helper()
		must.Do(t, f.update(t.Context(), func(content) (content, error) { return content{text, true}, nil }))
	}
	for name, tc := range map[string]struct {
		captured, applied string // what others have written after each
		apply, restore    error
		left              string
	}{
		"alone":             {"", "", nil, nil, "before"},
		"before Apply":      {"other", "", errChanged, nil, "other"},
		"after Apply":       {"", "other", nil, reversible.ErrOvertaken, "other"},
		"restored by other": {"", "before", nil, nil, "before"},
	} {
		put("before")
		op := replace(f, "ours")
		must.Do(t, op.Capture(t.Context()))
		if tc.captured != "" {
			put(tc.captured)
		}
		if err := op.Apply(t.Context()); !errors.Is(err, tc.apply) {
			t.Errorf("%s: Apply: %v, want %v", name, err, tc.apply)
		}
		if tc.applied != "" {
			put(tc.applied)
		}
		if err := op.Restore(t.Context()); !errors.Is(err, tc.restore) {
			t.Errorf("%s: Restore: %v, want %v", name, err, tc.restore)
		}
		if now, err := f.read(); err != nil || now.text != tc.left {
			t.Errorf("%s: there is %q, %v; want %q", name, now.text, err, tc.left)
		}
	}
}

func TestAnUndoneWriteLeavesNoFileWhereThereWasNoneAndAFileKeepsItsMode(t *testing.T) {
	t.Parallel()
	f := file{filepath.Join(t.TempDir(), "f")}
	apply := func() reversible.Operation {
		t.Helper()
		op := replace(f, "ours")
		must.Do(t, op.Capture(t.Context()))
		must.Do(t, op.Apply(t.Context()))
		return op
	}
	must.Do(t, apply().Restore(t.Context()))
	if _, err := os.Stat(f.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("where there was no file: %v, want none", err)
	}
	must.Do(t, os.WriteFile(f.path, nil, 0o600))
	must.Do(t, os.Chmod(f.path, 0o664)) //nolint:gosec // as others read it
	op := apply()
	for _, when := range []string{"after Apply", "after Restore"} {
		if now := must.Get(os.Stat(f.path))(t); now.Mode() != 0o664 {
			t.Errorf("%s: the mode is %v", when, now.Mode())
		}
		must.Do(t, op.Restore(t.Context()))
	}
}

func TestARequestWaitsForItsPredecessorForSoLongOnly(t *testing.T) {
	t.Parallel()
	asked, free := make(chan struct{}, 2), make(chan struct{})
	defer close(free)
	service := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-free // whatever ends
	})
	handler := must.Get(protect(t.Context(), pgtest.Database(t).Pool(t), service, 3*time.Second))(t)
	ask := func(token string) chan int {
		r := httptest.NewRequest(http.MethodPut, "/page", nil)
		r.Header.Set(fencedhttp.Header, token)
		return must.Go(func() int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code
		})
	}
	first := ask("1")
	select {
	case <-asked:
	case status := <-first:
		t.Fatalf("the service was not asked: status %d", status)
	}
	select {
	case status := <-ask("2"):
		if status != http.StatusServiceUnavailable {
			t.Errorf("status %d, want 503", status)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits without a limit")
	}
}

func TestARequestUnderWayEndsWithTheLease(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(asked)
		<-r.Context().Done() // never answers
	}))
	defer silent.Close()
	pool := pgtest.Database(t).Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	lease := must.Get(client.Acquire(t.Context(), "report"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	came := make(chan error, 1)
	go func() {
		base := &http.Transport{}
		defer base.CloseIdleConnections()
		came <- put(ctx, &http.Client{Transport: &fencedhttp.Transport{Base: base}}, lease, silent.URL, "text")
	}()
	<-asked
	must.Get(pool.Exec(t.Context(), "SELECT pglock.break_lock('report', 'test', 'test')"))(t)
	if _, err := lease.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatalf("Check: %v, want ErrLost", err)
	}
	if err := <-came; !errors.Is(err, pglock.ErrLost) || ctx.Err() != nil {
		t.Errorf("put: %v; the time limit: %v", err, ctx.Err())
	}
}
