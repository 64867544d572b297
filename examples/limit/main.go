// Command limit shows six processes that call a service of which three may be called at a time. One of them is killed
// in the middle of a call.
//
//	go run ./examples/limit
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglock-dev/pglock/examples/internal/stage"
)

const (
	limit = 3
	items = 12
)

func main() {
	stage.Main(stage.Play{
		Name:   "limit",
		Tables: "CREATE TABLE answers (item text PRIMARY KEY, answer text NOT NULL)",
		Story:  story,
		Worker: caller,
	})
}

// partner is the service. The story decides when it answers.
type partner struct {
	calls   chan call
	now     atomic.Int32 // callers
	tooMany atomic.Bool
}

type call struct {
	item   string
	answer chan struct{} // closed by the story
}

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.now.Add(1) > limit {
		p.tooMany.Store(true)
	}
	defer p.now.Add(-1)
	c := call{strings.TrimPrefix(r.URL.Path, "/"), make(chan struct{})}
	select {
	case p.calls <- c:
	case <-r.Context().Done():
		return
	}
	select {
	case <-c.answer:
		fmt.Fprintf(w, "answer to %s", c.item)
	case <-r.Context().Done(): // the caller is dead
	}
}

// take waits for n calls, which are all there at the same time.
func (p *partner) take(ctx context.Context, s *stage.Stage, n int) (calls []call, err error) {
	for range n {
		select {
		case c := <-p.calls:
			s.Say("partner", "is called for %s: %d callers", c.item, p.now.Load())
			calls = append(calls, c)
		case <-time.After(20 * time.Second):
			return nil, fmt.Errorf("%w: only %d calls at a time", stage.ErrPromise, len(calls))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return calls, nil
}

func answer(calls []call) {
	for _, c := range calls {
		close(c.answer)
	}
}

func story(ctx context.Context, s *stage.Stage) (shown string, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	service := &partner{calls: make(chan call)}
	server := &http.Server{Handler: service, ReadHeaderTimeout: time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	defer func() { err = errors.Join(err, server.Close()); <-done }()

	var callers []*stage.Process
	for i := range 6 {
		p, err := s.Start(string(rune('A'+i)), "http://"+listener.Addr().String()+"/")
		if err != nil {
			return "", err
		}
		callers = append(callers, p)
	}
	if err := callers[0].Tell("item-1"); err != nil {
		return "", err
	}
	ofA, err := service.take(ctx, s, 1)
	if err != nil {
		return "", err
	}
	for n := 2; n <= items; n++ {
		if err := callers[1+n%5].Tell(fmt.Sprint("item-", n)); err != nil {
			return "", err
		}
	}
	others, err := service.take(ctx, s, limit-1)
	if err != nil {
		return "", err
	}
	if err := s.AwaitQueue(ctx, "partner", len(callers)-limit); err != nil {
		return "", err
	}
	// A dies in the middle of its call, and another process has to make it.
	if err := errors.Join(callers[0].Kill(), callers[1].Tell(ofA[0].item)); err != nil {
		return "", err
	}
	answer(others)
	again, err := service.take(ctx, s, limit) // nobody is answered before all places are taken again, also that of A
	if err != nil {
		return "", err
	}
	if err := s.AwaitQueue(ctx, "partner", len(callers)-1-limit); err != nil {
		return "", err
	}
	answer(again)
	for range items - len(others) - len(again) {
		last, err := service.take(ctx, s, 1)
		if err != nil {
			return "", err
		}
		answer(last)
	}
	if err := s.AwaitAll(ctx, items, "has the answer"); err != nil {
		return "", err
	}
	if service.tooMany.Load() {
		return "", fmt.Errorf("%w: more than %d callers at a time", stage.ErrPromise, limit)
	}
	return "three processes of six called at a time, never more; the place of the one that died was taken again.",
		s.Check(ctx, "answers", items, "SELECT count(*) FROM answers")
}

func caller(ctx context.Context, w *stage.Worker) error {
	f := &Fetcher{Client: w.Client, Store: w.Store, Limit: limit}
	f.Call = func(ctx context.Context, item string) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Args[0]+item, nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		return string(answer), err
	}
	for item := range w.Orders {
		if err := f.Fetch(ctx, item); err != nil {
			return err
		}
		w.Say("has the answer to %s", item)
	}
	return nil
}
