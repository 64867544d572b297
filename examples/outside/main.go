//go:build unix

// Command outside guards what is not in the database: a file, through fencedstore.Run, and an HTTP service, through
// package fencedhttp. It tells a short story on a throwaway PostgreSQL server and leaves nothing behind.
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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pgserver"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// ending bounds every step of the cleaning after the story.
const ending = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // the program's own life
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "outside:", err)
		os.Exit(1)
	}
}

// run tells the story on a server and in a folder of its own.
func run(ctx context.Context, out io.Writer) (err error) {
	server, err := pgserver.Locate(ctx, "", os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	dir, err := os.MkdirTemp("", "pglock-outside-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := migrations.Up(ctx, server.URL()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, a throwaway\n", server.Description())
	return play(ctx, out, server.URL(), dir)
}

// A file is replaced as a whole. All its writers take the lock of the file beside it (flock) while they compare what is
// there and rename what shall be, so that the two are one step.
type file struct{ path string }

var errChanged = errors.New("somebody else has written since it was read")

func (f file) read() (string, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// update replaces what is there by what change makes of it, unless that fails.
func (f file) update(ctx context.Context, change func(now string) (string, error)) error {
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
		select { // somebody else compares and renames, which does not take long
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
	temporary := f.path + ".new"
	if err := os.WriteFile(temporary, []byte(next), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, f.path)
}

// replace is the operation that writes text into the file. The text must be no other writer's: it has the token in it.
// Both directions are conditional: Apply replaces only what was captured, and Restore only what Apply has left.
func replace(f file, text string) fencedstore.Reversible {
	var before string
	wrote := false // maybe
	return fencedstore.Reversible{
		Capture: func(context.Context) (err error) {
			before, err = f.read()
			return err
		},
		Apply: func(ctx context.Context) error {
			return f.update(ctx, func(now string) (string, error) {
				if now != before {
					return "", errChanged
				}
				wrote = true
				return text, nil
			})
		},
		Restore: func(ctx context.Context) error {
			if !wrote {
				return nil
			}
			return f.update(ctx, func(now string) (string, error) {
				if now != before && now != text {
					return "", fmt.Errorf("%w: there is %q", fencedstore.ErrOvertaken, now)
				}
				return before, nil
			})
		},
	}
}

// page is an HTTP service that keeps one text, and the greatest token that it has seen, in a table of its own.
type page struct {
	server *http.Server
	url    string
	done   chan error

	mu   sync.Mutex
	text string
}

func openPage(ctx context.Context, pool *pgxpool.Pool) (*page, error) {
	store, err := fencedhttp.NewTableStore(pool, pgx.Identifier{"page_tokens"})
	if err != nil {
		return nil, err
	}
	if err := store.Create(ctx); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &page{url: "http://" + listener.Addr().String() + "/page", done: make(chan error, 1)}
	verifier := &fencedhttp.Verifier{Store: store, Serialize: true,
		Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil }}
	p.server = &http.Server{Handler: verifier.Middleware(p), ReadHeaderTimeout: ending}
	go func() { p.done <- p.server.Serve(listener) }() // ended by close
	return p, nil
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

func (p *page) close() error {
	err := p.server.Close()
	if served := <-p.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// story is all that takes part in it.
type story struct {
	out    io.Writer
	client *pglock.Client
	admin  *lockadmin.Admin
	store  *fencedstore.Store
	file   file
	page   *page
	web    *http.Client
}

func (s *story) say(who, format string, args ...any) {
	fmt.Fprintf(s.out, "%-9s %s\n", who, fmt.Sprintf(format, args...))
}

// write writes the words into the file under the lease. While it is at work, meanwhile happens.
func (s *story) write(ctx context.Context, lease *pglock.Lease, words string, meanwhile func() error) error {
	op := replace(s.file, text(words, lease))
	apply := op.Apply
	op.Apply = func(ctx context.Context) error {
		if err := apply(ctx); err != nil || meanwhile == nil {
			return err
		}
		return meanwhile()
	}
	err := s.store.Run(ctx, lease, op)
	var stale *fencedstore.StaleTokenError
	switch {
	case err == nil:
		s.say(lease.Holder(), "writes %q into the file", text(words, lease))
	case errors.As(err, &stale):
		s.say(lease.Holder(), "writes %q into the file: REFUSED by the fence, token %d has passed; the file was not touched",
			text(words, lease), stale.LastToken)
	case errors.Is(err, fencedstore.ErrOvertaken):
		s.say(lease.Holder(), "finds its lease lost after it wrote, and the file with what somebody else wrote since: LEFT ALONE")
	case errors.Is(err, pglock.ErrLost) && errors.Is(err, fencedstore.ErrUndone):
		s.say(lease.Holder(), "finds its lease lost after it wrote %q: UNDONE", text(words, lease))
	default:
		return err
	}
	return nil
}

// put puts the words on the page under the lease.
func (s *story) put(ctx context.Context, lease *pglock.Lease, words string) error {
	body := strings.NewReader(text(words, lease))
	r, err := http.NewRequestWithContext(fencedhttp.ContextWithLease(ctx, lease), http.MethodPut, s.page.url, body)
	if err != nil {
		return err
	}
	response, err := s.web.Do(r)
	if errors.Is(err, pglock.ErrLost) {
		s.say(lease.Holder(), "puts %q on the page: NOT SENT, its lease is lost", text(words, lease))
		return nil
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var refused *fencedhttp.RefusedError
	if errors.As(fencedhttp.Refusal(response), &refused) {
		s.say(lease.Holder(), "puts %q on the page: REFUSED with %d, the page has seen token %d",
			text(words, lease), response.StatusCode, refused.LastToken)
		return nil
	}
	s.say(lease.Holder(), "puts %q on the page: %s", text(words, lease), response.Status)
	return nil
}

func text(words string, lease *pglock.Lease) string {
	return fmt.Sprintf("%s, token %d", words, lease.Token())
}

// breaks ends whoever's lease it is; its holder is not told.
func (s *story) breaks(ctx context.Context) error {
	broken, err := s.admin.Break(ctx, "report", "its host does not answer")
	if err == nil {
		s.say("operator", "breaks the lease of %s, who does not know yet", broken.Holder)
	}
	return err
}

func (s *story) acquire(ctx context.Context, who string) (*pglock.Lease, error) {
	lease, err := s.client.Acquire(ctx, "report", pglock.WithHolder(who), pglock.WithTTL(time.Minute))
	if err == nil {
		s.say(who, "holds the lock, token %d", lease.Token())
	}
	return lease, err
}

// play tells the story over the database that url names, whose schema is there, and leaves the file in dir.
func play(ctx context.Context, out io.Writer, url, dir string) (err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		return err
	}
	client, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	service, err := openPage(ctx, pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.close()) }()
	s := &story{out: out, client: client, admin: admin, store: fencedstore.New(pool), file: file{filepath.Join(dir, "report.txt")}, page: service,
		web: &http.Client{Transport: &fencedhttp.Transport{Base: &http.Transport{}}, Timeout: ending}}
	defer s.web.CloseIdleConnections()
	if err := errors.Join(s.lateHolder(ctx), s.lossInTheMiddle(ctx)); err != nil {
		return err
	}
	return s.ledger(ctx)
}

// lateHolder is A, which goes on after B has come.
func (s *story) lateHolder(ctx context.Context) error {
	fmt.Fprintln(s.out, "\nA holder that is late")
	a, err := s.acquire(ctx, "A")
	if err != nil {
		return err
	}
	if err := errors.Join(s.write(ctx, a, "Monday", nil), s.put(ctx, a, "Monday"), s.breaks(ctx)); err != nil {
		return err
	}
	b, err := s.acquire(ctx, "B")
	if err != nil {
		return err
	}
	return errors.Join(s.write(ctx, b, "Tuesday", nil), s.put(ctx, b, "Tuesday"),
		s.write(ctx, a, "late Monday", nil), s.put(ctx, a, "late Monday"), b.Release(ctx))
}

// lossInTheMiddle is C, which loses its lease while it writes, and D, which does and finds E's work there.
func (s *story) lossInTheMiddle(ctx context.Context) error {
	fmt.Fprintln(s.out, "\nA lease that is lost in the middle of a write")
	c, err := s.acquire(ctx, "C")
	if err != nil {
		return err
	}
	err = errors.Join(s.write(ctx, c, "Wednesday", func() error { return s.breaks(ctx) }), s.put(ctx, c, "Wednesday"))
	if err != nil {
		return err
	}
	d, err := s.acquire(ctx, "D")
	if err != nil {
		return err
	}
	return s.write(ctx, d, "Thursday", func() error {
		if err := s.breaks(ctx); err != nil {
			return err
		}
		e, err := s.acquire(ctx, "E")
		if err != nil {
			return err
		}
		return errors.Join(s.write(ctx, e, "Friday", nil), s.put(ctx, e, "Friday"), e.Release(ctx))
	})
}

// ledger shows what is there in the end.
func (s *story) ledger(ctx context.Context) error {
	now, err := s.file.read()
	if err != nil {
		return err
	}
	s.page.mu.Lock()
	page := s.page.text
	s.page.mu.Unlock()
	fmt.Fprintf(s.out, "\nfile      %s\npage      %s\n", now, page)
	events, err := lockadmin.Collect(s.admin.Events(ctx, "report"))
	for _, e := range slices.Backward(events) {
		fmt.Fprintf(s.out, "audit     %s of %s, token %d\n", e.Kind, e.Holder, e.Token)
	}
	return err
}
