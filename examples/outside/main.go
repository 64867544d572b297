//go:build unix

// Command outside guards what is not in the database: a file, through reversible.Run, and an HTTP service, through
// package fencedhttp. Several processes write both; they lose their leases, also in the middle of a write, and one is
// killed there.
//
//	go run ./examples/outside
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/examples/internal/stage"
	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func main() { stage.Main(stage.Play{Name: "outside", Story: story, Worker: writer}) }

// page is the service. It keeps one text.
type page struct {
	mu   sync.Mutex
	text string
}

func (p *page) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<10))
	if err != nil || r.Method != http.MethodPut {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = string(b)
}

func (p *page) now() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

// scene is all that takes part in the story.
type scene struct {
	*stage.Stage
	admin *lockadmin.Admin
	file  file
	url   string
}

func story(ctx context.Context, s *stage.Stage) (shown string, err error) {
	dir, err := os.MkdirTemp("", "pglock-outside-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	service := &page{}
	handler, err := protect(ctx, s.Pool, service, 10*time.Second)
	if err != nil {
		return "", err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	defer func() { err = errors.Join(err, server.Close()); <-done }()
	admin, err := lockadmin.New(ctx, s.Pool, lockadmin.WithSchema(s.Schema))
	if err != nil {
		return "", err
	}
	sc := &scene{s, admin, file{filepath.Join(dir, "report.txt")}, "http://" + listener.Addr().String() + "/page"}
	for _, act := range []func(context.Context) error{sc.lateHolder, sc.lossInTheMiddle, sc.othersWrote, sc.killed} {
		if err := act(ctx); err != nil {
			return "", err
		}
	}
	now, err := sc.file.read()
	if err != nil {
		return "", err
	}
	s.Say("file", "%s", now.text)
	s.Say("page", "%s", service.now())
	if !strings.HasPrefix(now.text, "Sunday, token ") || service.now() != now.text {
		return "", fmt.Errorf("%w: the file has %q and the page %q", stage.ErrPromise, now.text, service.now())
	}
	return "the last good write stands in the file and on the page: no late one came through, and one was undone.",
		s.Check(ctx, "the page has seen the token of that text", true,
			"SELECT $1 = 'Sunday, token ' || max(token) FROM page_tokens", now.text)
}

// holder starts a process that takes the lock.
func (s *scene) holder(ctx context.Context, name string) (*stage.Process, error) {
	p, err := s.Start(name, s.file.path, s.url)
	if err == nil {
		_, err = s.Await(ctx, "holds the lock", p)
	}
	return p, err
}

// orders gives the process one order after the other, and waits until it has said what came of each.
func (s *scene) orders(ctx context.Context, p *stage.Process, ordersAndAnswers ...string) error {
	for i := 0; i < len(ordersAndAnswers); i += 2 {
		if err := p.Tell(ordersAndAnswers[i]); err != nil {
			return err
		}
		if _, err := s.Await(ctx, ordersAndAnswers[i+1], p); err != nil {
			return err
		}
	}
	return nil
}

// breaks ends whoever's lease it is. Its holder does not hear of it.
func (s *scene) breaks(ctx context.Context) error {
	broken, err := s.admin.Break(ctx, "report", "its host does not answer", lockadmin.BreakOptions{})
	if err == nil {
		s.Say("operator", "breaks the lease of %s", broken.Holder)
	}
	return err
}

// writesAll is a holder that does its work and goes.
func (s *scene) writesAll(ctx context.Context, name, words string) error {
	p, err := s.holder(ctx, name)
	if err != nil {
		return err
	}
	return errors.Join(s.orders(ctx, p, "write "+words, "writes", "put "+words, "puts"), p.Stop(ctx))
}

// lateHolder is A, which goes on after B has come.
func (s *scene) lateHolder(ctx context.Context) error {
	a, err := s.holder(ctx, "A")
	if err != nil {
		return err
	}
	err = errors.Join(s.orders(ctx, a, "write Monday", "writes", "put Monday", "puts"),
		s.breaks(ctx), s.writesAll(ctx, "B", "Tuesday"))
	if err != nil {
		return err
	}
	return s.orders(ctx, a, "write late Monday", "REFUSED by the fence", "put late Monday", "REFUSED with 409")
}

// lossInTheMiddle is C, which loses its lease while it writes.
func (s *scene) lossInTheMiddle(ctx context.Context) error {
	c, err := s.holder(ctx, "C")
	if err != nil {
		return err
	}
	return errors.Join(s.orders(ctx, c, "begin Wednesday", "in the middle"), s.breaks(ctx),
		s.orders(ctx, c, "go on", "UNDONE", "put Wednesday", "NOT SENT"))
}

// othersWrote is D, which loses its lease while it writes and finds E's work there.
func (s *scene) othersWrote(ctx context.Context) error {
	d, err := s.holder(ctx, "D")
	if err != nil {
		return err
	}
	return errors.Join(s.orders(ctx, d, "begin Thursday", "in the middle"),
		s.breaks(ctx), s.writesAll(ctx, "E", "Friday"),
		s.orders(ctx, d, "go on", "LEFT ALONE"))
}

// killed is F, which dies in the middle. Nobody undoes what it has written, and the next holder writes over it.
func (s *scene) killed(ctx context.Context) error {
	f, err := s.holder(ctx, "F")
	if err != nil {
		return err
	}
	return errors.Join(s.orders(ctx, f, "begin Saturday", "in the middle"),
		f.Kill(), s.breaks(ctx), s.writesAll(ctx, "G", "Sunday"))
}

// writer holds the lock and does what it is told. Its lease is long: it does not hear of a break.
func writer(ctx context.Context, w *stage.Worker) error {
	lease, err := w.Client.Acquire(ctx, "report", pglock.WithTTL(time.Minute))
	if err != nil {
		return err
	}
	w.Say("holds the lock, token %d", lease.Token())
	web := &http.Client{Transport: &fencedhttp.Transport{Base: &http.Transport{}}}
	for order := range w.Orders {
		what, words, _ := strings.Cut(order, " ")
		text := fmt.Sprintf("%s, token %d", words, lease.Token())
		op := replace(file{w.Args[0]}, text)
		switch what {
		case "begin":
			apply := op.Apply
			op.Apply = func(ctx context.Context) error {
				if err := apply(ctx); err != nil {
					return err
				}
				w.Say("is in the middle: has written %q and not asked yet whether it still holds the lock", text)
				<-w.Orders
				return nil
			}
			fallthrough
		case "write":
			err = sayFile(w, text, reversible.Run(ctx, lease, op))
		case "put":
			err = sayPage(w, text, put(ctx, web, lease, w.Args[1], text))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sayFile tells what came of a write to the file. It gives the error back that does not belong to the story.
func sayFile(w *stage.Worker, text string, err error) error {
	var stale *fencedstore.StaleTokenError
	switch {
	case err == nil:
		w.Say("writes %q into the file", text)
	case errors.As(err, &stale):
		w.Say("writes %q into the file: REFUSED by the fence, token %d has passed", text, stale.LastToken)
	case errors.Is(err, reversible.ErrOvertaken):
		w.Say("finds its lease lost after it wrote, and in the file what somebody else wrote since: LEFT ALONE")
	case errors.Is(err, pglock.ErrLost) && errors.Is(err, reversible.ErrUndone):
		w.Say("finds its lease lost after it wrote %q: UNDONE", text)
	default:
		return err
	}
	return nil
}

// sayPage is sayFile for the page.
func sayPage(w *stage.Worker, text string, err error) error {
	var refused *fencedhttp.RefusedError
	switch {
	case err == nil:
		w.Say("puts %q on the page", text)
	case errors.As(err, &refused):
		w.Say("puts %q on the page: REFUSED with 409, the page has seen token %d", text, refused.LastToken)
	case errors.Is(err, pglock.ErrLost):
		w.Say("puts %q on the page: NOT SENT, its lease is lost", text)
	default:
		return err
	}
	return nil
}
