package fencedhttp_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// life is what happened to one request, as places in the order of all that happened; 0: it did not.
type life struct {
	token             int64
	sent, start, done int
}

// history orders what happens.
type history struct {
	mu   sync.Mutex
	last int
}

func (h *history) now() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	return h.last
}

// yield lets other goroutines run, for a while that the generator chooses.
func yield(r *rand.Rand) {
	for range r.IntN(4) {
		runtime.Gosched()
	}
}

// crowd sends requests with random tokens through the verifier from several goroutines, and tells what became of them.
func crowd(t *testing.T, seed uint64, serialize bool) []life {
	var h history
	memory := &fencedhttp.MemoryStore{}
	type key struct{}
	v := &fencedhttp.Verifier{Serialize: serialize, Resource: func(*http.Request) (string, error) { return "r", nil },
		Store: storeFunc(func(ctx context.Context, resource string, token pglock.Token) (pglock.Token, error) {
			r := ctx.Value(key{}).(*rand.Rand)
			yield(r)
			last, err := memory.Advance(ctx, resource, token)
			yield(r) // here it can be overtaken
			return last, err
		})}
	handler := v.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		l := r.Context().Value(history{}).(*life)
		l.start = h.now()
		yield(r.Context().Value(key{}).(*rand.Rand))
		l.done = h.now()
	}))
	const clients, each = 8, 12
	lives := make([]life, clients*each)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for i := range each {
				l := &lives[c*each+i]
				l.token = int64(1 + i + r.IntN(6)) // rising, and close to what the others have
				ctx := context.WithValue(context.WithValue(t.Context(), key{}, r), history{}, l)
				l.sent = h.now()
				w := ask(ctx, handler, "/", strconv.FormatInt(l.token, 10))
				if (w.Code == 200) != (l.start > 0) || w.Code != 200 && w.Code != 409 {
					t.Errorf("status %d of %+v", w.Code, *l)
				}
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(lives, func(l life) bool { return l.start == 0 })
}

// wantOrder looks at each pair of admitted requests, the lower token first, of many crowds.
func wantOrder(t *testing.T, serialize bool, inOrder func(low, high life) bool) {
	t.Helper()
	most := 0
	for seed := range uint64(200) {
		admitted := crowd(t, seed, serialize)
		most = max(most, len(admitted))
		for _, a := range admitted {
			for _, b := range admitted {
				if a.token < b.token && !inOrder(a, b) {
					t.Fatalf("seed %d: %+v and %+v were admitted", seed, a, b)
				}
			}
		}
	}
	if most < 10 { // a verifier that admits hardly anybody keeps every order
		t.Errorf("never were more than %d admitted", most)
	}
}

// No request is admitted that was sent after one with a greater token had been.
func TestI3_ConcurrentRequestsAreAdmittedInTheOrderOfTokens(t *testing.T) {
	t.Parallel()
	wantOrder(t, false, func(low, high life) bool { return high.start >= low.sent })
}

// A request with a greater token begins when those with lower ones are over.
func TestI3_SerializedRequestsCompleteInTheOrderOfTokens(t *testing.T) {
	t.Parallel()
	wantOrder(t, true, func(low, high life) bool { return low.done <= high.start })
}

func TestI3_SerializedRequestThatIsOvertakenBetweenStoreAndHandlerIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := &fencedhttp.MemoryStore{}
		passed, goOn := make(chan struct{}), make(chan struct{})
		v := byPath(storeFunc(func(ctx context.Context, resource string, token pglock.Token) (pglock.Token, error) {
			last, err := memory.Advance(ctx, resource, token)
			if token == 33 {
				close(passed)
				<-goOn
			}
			return last, err
		}))
		v.Serialize = true
		h := v.Middleware(echo)
		late := must.Go(func() *httptest.ResponseRecorder { return ask(t.Context(), h, "/r", "33") })
		<-passed
		if w := ask(t.Context(), h, "/r", "34"); w.Code != 200 {
			t.Errorf("token 34: status %d", w.Code)
		}
		close(goOn)
		if d := wantProblem(t, <-late, 409, fencedhttp.TypeStaleToken); d.Token != 33 || d.LastToken != 34 {
			t.Errorf("token 33: %+v", d)
		}
	})
}

func TestSerializedRequestWaitsForItsPredecessorsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var running []string
		finish := map[string]chan struct{}{"33": make(chan struct{}), "34": make(chan struct{}),
			"35": make(chan struct{})}
		other := make(chan struct{})
		v := byPath(&fencedhttp.MemoryStore{})
		v.Serialize = true
		h := v.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			token := r.Header.Get(fencedhttp.Header)
			mu.Lock()
			running = append(running, r.URL.Path+token)
			mu.Unlock()
			if r.URL.Path == "/other" {
				<-other
				return
			}
			<-finish[token]
		}))
		answers := map[string]chan *httptest.ResponseRecorder{}
		send := func(path, token string) {
			answers[path+token] = make(chan *httptest.ResponseRecorder, 2)
			go func() { answers[path+token] <- ask(t.Context(), h, path, token) }()
			synctest.Wait() // all that can go on has gone on
		}
		want := func(what ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(running, what) {
				t.Fatalf("began %v, want %v", running, what)
			}
		}
		send("/r", "33")
		send("/r", "33") // the same holder, side by side
		want("/r33", "/r33")
		send("/r", "34")
		send("/other", "1") // nobody else waits
		want("/r33", "/r33", "/other1")
		if w := ask(t.Context(), h, "/r", "33"); w.Code != 409 {
			t.Errorf("token 33 behind a waiting 34: status %d", w.Code)
		}
		send("/r", "35") // overtakes 34, which was admitted by the store
		wantProblem(t, <-answers["/r34"], 409, fencedhttp.TypeStaleToken)
		want("/r33", "/r33", "/other1")
		close(finish["33"])
		synctest.Wait()
		want("/r33", "/r33", "/other1", "/r35")
		close(finish["35"])
		close(other)
		if w := <-answers["/r35"]; w.Code != 200 {
			t.Errorf("token 35: status %d", w.Code)
		}
	})
}

func TestSerializedRequestThatWaitsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		v := byPath(&fencedhttp.MemoryStore{})
		v.Serialize = true
		var reported error
		v.OnError = func(_ *http.Request, err error) { reported = err }
		h := v.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get(fencedhttp.Header) == "33" {
				<-release
				panic(http.ErrAbortHandler)
			}
		}))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { recover() }()
			ask(t.Context(), h, "/r", "33")
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d := wantProblem(t, ask(ctx, h, "/r", "34"), 503, fencedhttp.TypeWaiting)
		if d.Token != 34 || !errors.Is(reported, context.DeadlineExceeded) {
			t.Errorf("%+v, %v", d, reported)
		}
		close(release) // a handler that panics has returned too
		<-ended
		if w := ask(t.Context(), h, "/r", "34"); w.Code != 200 {
			t.Errorf("token 34 after the end of 33: status %d", w.Code)
		}
	})
}
