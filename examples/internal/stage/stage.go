// Package stage is where the examples play: it gives each a database, starts its processes, tells what they say as
// they say it, checks in the database what the example promises, and leaves nothing behind.
package stage

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/guest"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
)

const (
	// longest bounds a story.
	longest = time.Minute
	// patience bounds every wait for what a process says or for its end.
	patience = 20 * time.Second
	// tidying bounds the removal of the schemas.
	tidying = 10 * time.Second
	// poolSize is the size of every process's pool.
	poolSize = 3
)

// ErrPromise: the database does not have what the example promises. This is a bug.
var ErrPromise = errors.New("the promise did not hold")

// Play is an example. Its program is run twice over: once as the story, and once for each process that the story
// starts.
type Play struct {
	Name   string // of the example, as in go run ./examples/NAME
	Tables string // SQL that makes the application's tables
	// Story starts processes, kills some, and checks what is in the database in the end. It returns what was shown,
	// in a sentence.
	Story func(ctx context.Context, s *Stage) (shown string, err error)
	// Worker is the life of a process. Its ctx ends when the story lets go of it.
	Worker func(ctx context.Context, w *Worker) error
}

// Main is the whole main function of an example. It ends the process: with 0 only if the promise held.
func Main(p Play) {
	if len(os.Args) > 1 && os.Args[1] == workerArgument {
		os.Exit(work(p))
	}
	flags := flag.NewFlagSet(p.Name, flag.ExitOnError)
	url := flags.String("database-url", "",
		"play in a new schema of this database, which is dropped at the end (default: a throwaway server)")
	_ = flags.Parse(os.Args[1:]) // it exits
	// A reader that goes away (| head) must not kill this process: it has to tidy up.
	life := context.Background() //nolint:forbidigo // the program's own
	ctx, stop := signal.NotifyContext(life, append(pgserver.Ending(), syscall.SIGPIPE)...)
	err := perform(ctx, p, *url, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		os.Exit(1)
	}
}

// Stage is what a story has at hand.
type Stage struct {
	Pool   *pgxpool.Pool
	Schema string // of pglock

	play  Play
	fail  context.CancelCauseFunc // of the story, when a process fails
	url   string
	drop  func(context.Context) error // pglock's schema; nil: there is none
	began time.Time

	printing sync.Mutex // at out
	out      io.Writer

	processes []*Process

	mu   sync.Mutex
	said []*line
	news chan struct{} // closed and made anew when said grows or a process ends
}

func perform(ctx context.Context, p Play, url string, out io.Writer) (err error) {
	server, err := pgserver.Locate(ctx, url, os.Stderr)
	if err != nil {
		return err
	}
	s := &Stage{play: p, url: server.URL(), Schema: "pglock", out: out, began: time.Now(), news: make(chan struct{})}
	where := "a throwaway server, removed at the end"
	if server.Kind() == pgserver.KindURL {
		s.Schema = fmt.Sprintf("pglock_example_%08x", rand.Uint32())
		where = "in schemas " + s.Schema + " and " + s.tables() + ", dropped at the end"
	} else if err := pgserver.UnsetPG(); err != nil { // the processes inherit this
		return errors.Join(err, server.Stop())
	}
	fmt.Fprintf(out, "%s, %s\n\n", server.Description(), where)
	defer func() {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted, and nothing is left: %w", context.Cause(ctx))
		}
		err = errors.Join(err, s.tidy(ctx, server))
	}()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	story, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	story, s.fail = context.WithCancelCause(story)
	defer s.fail(nil)
	shown, err := p.Story(story, s)
	if story.Err() != nil {
		err = context.Cause(story)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nSHOWN: %s\n", shown)
	return err
}

// tables is the schema of the application's tables.
func (s *Stage) tables() string { return s.Schema + "_tables" }

func (s *Stage) prepare(ctx context.Context) (err error) {
	if s.drop, err = guest.MakeSchema(ctx, s.url, s.Schema); err != nil {
		return err
	}
	if s.Pool, err = openPool(ctx, s.url, s.tables()); err != nil {
		return err
	}
	_, err = s.Pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{s.tables()}.Sanitize()+";"+s.play.Tables)
	return err
}

// openPool gives a pool whose statements find the application's tables.
func openPool(ctx context.Context, url, tables string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = poolSize
	config.ConnConfig.RuntimeParams["search_path"] = tables
	return pgxpool.NewWithConfig(ctx, config)
}

// tidy removes everything, in an order in which nothing holds on to what goes next.
func (s *Stage) tidy(ctx context.Context, server *pgserver.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
	defer cancel()
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, p.end())
	}
	if s.Pool != nil && server.Kind() == pgserver.KindURL {
		_, err := s.Pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{s.tables()}.Sanitize()+" CASCADE")
		errs = append(errs, err)
	}
	if s.drop != nil && server.Kind() == pgserver.KindURL {
		errs = append(errs, s.drop(ctx))
	}
	if s.Pool != nil {
		s.Pool.Close()
	}
	return errors.Join(append(errs, server.Stop())...)
}

// Say tells what happens, and to whom.
func (s *Stage) Say(who, format string, args ...any) {
	s.printing.Lock()
	defer s.printing.Unlock()
	fmt.Fprintf(s.out, "%6.2f s  %-9s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// Check asks the database a question with one answer, tells it, and fails with ErrPromise where it is not want.
func (s *Stage) Check(ctx context.Context, what string, want any, sql string, args ...any) error {
	var got string
	if err := s.Pool.QueryRow(ctx, "SELECT coalesce(("+sql+")::text, 'none')", args...).Scan(&got); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if got != fmt.Sprint(want) {
		return fmt.Errorf("%w: %s: the database has %s, not %v", ErrPromise, what, got, want)
	}
	s.Say("database", "%s: %s", what, got)
	return nil
}

// line is what a process has said.
type line struct {
	from  *Process
	text  string
	heard bool // an Await has returned it
}

// Await waits until one of the processes, or of all where none is named, says a line with text in it that no Await
// has returned before. It tells who. It fails when a named process ends first.
func (s *Stage) Await(ctx context.Context, text string, of ...*Process) (*Process, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		from, news, err := s.find(text, of)
		if from != nil || err != nil {
			return from, err
		}
		select {
		case <-news:
		case <-late.C:
			return nil, fmt.Errorf("nobody has said %q for %v", text, patience)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// AwaitAll is Await, for n such lines.
func (s *Stage) AwaitAll(ctx context.Context, n int, text string, of ...*Process) error {
	for range n {
		if _, err := s.Await(ctx, text, of...); err != nil {
			return err
		}
	}
	return nil
}

// AwaitQueue waits until n requests wait for a lock.
func (s *Stage) AwaitQueue(ctx context.Context, lock string, n int) error {
	admin, err := lockadmin.New(ctx, s.Pool, lockadmin.WithSchema(s.Schema))
	if err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < patience; {
		waiters, err := lists.All(admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: lock}))
		if err != nil {
			return err
		}
		if len(waiters) == n {
			s.Say("queue", "of %q: %d", lock, n)
			return nil
		}
		if err := Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("no %d requests wait for %q after %v", n, lock, patience)
}

func (s *Stage) find(text string, of []*Process) (*Process, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	among := map[*Process]bool{}
	for _, p := range of {
		among[p] = true
	}
	for _, l := range s.said {
		if !l.heard && (len(of) == 0 || among[l.from]) && strings.Contains(l.text, text) {
			l.heard = true
			return l.from, nil, nil
		}
	}
	for _, p := range of {
		if p.over {
			return nil, nil, fmt.Errorf("%s has ended and did not say %q: %w", p.Name, text, cmp.Or(p.err, errEnded))
		}
	}
	return nil, s.news, nil
}

// note keeps what a process has said, or that it has ended, for Await.
func (s *Stage) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.news)
	s.news = make(chan struct{})
}
