//go:build unix

package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/minder"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// minding is the name of the command that NewMinder makes.
const minding = "run-minder"

// CatchesNothing reports whether this command line is a process that must leave signals as they are, because it
// becomes the command of run.
func CatchesNothing(args []string) bool {
	return len(args) > 0 && args[0] == minding && minder.IsGate(args[1:])
}

// NewMinder is how the process begins that stands between run and its command: run starts this same program again.
func NewMinder() *cobra.Command {
	return &cobra.Command{
		Use:                minding,
		Hidden:             true,
		Args:               cobra.ArbitraryArgs,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return minder.Mind(args) },
	}
}

// passedOn are the signals that the command gets instead of run.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// runUnderLock takes the lock, runs the command and releases the lock.
func runUnderLock(o *cli.Options, cmd *cobra.Command, e *errand) (err error) {
	path, err := lookUp(o, e.command[0])
	if err != nil {
		return err
	}
	// Whoever reads the messages may be gone. If nobody asked for SIGPIPE, a message would then end run before run has
	// ended the command, and in place of the exit code.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// What ends cmd's context are signals, which come here too.
	ctx := context.WithoutCancel(cmd.Context())
	signals := make(chan os.Signal, 16)
	if heard := cli.Heeded(passedOn...); len(heard) > 0 {
		signal.Notify(signals, heard...)
		defer signal.Stop(signals)
	}
	pglock.ObserveCommits(o.Config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, o.Config)
	if err != nil {
		return err
	}
	defer cli.CloseSoon(pool)
	var client *pglock.Client
	var lease *pglock.Lease
	if err := heeding(ctx, signals, func(ctx context.Context) (err error) {
		client, lease, err = acquire(ctx, o, pool, e)
		return err
	}); err != nil {
		if client != nil {
			_ = client.Close(ctx) // also what was granted; at worst it runs out
		}
		return err
	}
	notes := cli.NewNotes(cmd.ErrOrStderr())
	defer notes.End()
	r := &runner{
		options: o, errand: e, path: path, lease: lease, pool: pool, store: fencedstore.New(pool), signals: signals,
		note: notes.Write,
	}
	defer func() { err = r.release(ctx, client, err) }()
	return r.run(ctx)
}

// goodbye is how long the client may take to end its session when the lock has been released.
const goodbye = 2 * time.Second

// lookUp finds the file of a command, before a lock is taken for it.
func lookUp(o *cli.Options, command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // PATH names the present folder, and a shell would take it
		return path, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		o.At = nil // no server has a part in it
		return "", ending(ExitNoCommand, "the path of an executable file; or sh -c '…', for words of a shell",
			"%s was not found", shown.Word(command))
	}
	return "", cannotExecute(o, command, err)
}

func cannotExecute(o *cli.Options, command string, err error) error {
	if reason, is := errors.AsType[*exec.Error](err); is {
		err = reason.Err
	}
	o.At = nil
	return ending(ExitCannotExec, "chmod +x for a file, or a first line such as #!/bin/sh for a script",
		"%s cannot be executed: %v", shown.Word(command), err)
}

// signalled is a signal that came before the command was started.
type signalled struct{ syscall.Signal }

func (s signalled) Error() string { return "interrupted by " + s.Signal.String() }

// heeding calls f before the command is started. Any signal ends the context of f, and whatever f answers then, the
// command does not run.
func heeding(ctx context.Context, signals <-chan os.Signal, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over, heard := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(heard)
		select {
		case s := <-signals:
			cancel(signalled{s.(syscall.Signal)})
		case <-over:
		}
	}()
	err := f(ctx)
	close(over)
	<-heard
	if s, is := errors.AsType[signalled](context.Cause(ctx)); is {
		return ending(ExitSignal+int(s.Signal), cli.Again, "%v; COMMAND has not run", s)
	}
	return err
}

// acquire makes the client, which the caller closes if there is a lease, and takes the lock.
func acquire(ctx context.Context, o *cli.Options, pool *pgxpool.Pool, e *errand) (
	client *pglock.Client, lease *pglock.Lease, err error,
) {
	short, done := o.Bounded(ctx)
	defer done()
	client, err = pglock.New(short, pool, pglock.WithSchema(o.Schema), pglock.WithDefaultHolder(holderOf(e.command[0])))
	if err != nil {
		return nil, nil, cli.Because(short, o.WithRights(short, pool, err))
	}
	if e.try || e.waits { // first, and with time enough: a short wait may end before the server has said who holds it
		lease, err = client.TryAcquire(short, e.name, e.opts...)
		err = cli.Because(short, err)
	}
	if held := err; !e.try && (!e.waits || errors.Is(held, pglock.ErrHeld) && e.wait > 0) {
		if e.waits {
			e.opts = append(e.opts, pglock.WithMaxWait(e.wait))
		}
		lease, err = client.Acquire(ctx, e.name, e.opts...)
		if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pglock.ErrHeld) && e.wait < o.Timeout {
			err = held
		}
	}
	switch {
	case errors.Is(err, pglock.ErrHeld) && !errors.Is(err, context.Canceled):
		err = heldByOthers(o, e, err)
	case errors.Is(err, pglock.ErrLimit):
		err = ending(ExitRunBase+cli.ExitUsage, "the same --limit everywhere; pglock-admin show "+shown.Name(e.name)+
			o.Same()+" tells more",
			"--limit is %d, but lock %s is in use with another limit; COMMAND has not run", e.limit,
			shown.Name(e.name))
	}
	return client, lease, err
}

// holderOf is the label of whoever runs a command: host/command[pid].
func holderOf(command string) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	label := strings.ToValidUTF8(fmt.Sprintf("%.100s/%.100s[%d]", host, filepath.Base(command), os.Getpid()), "?")
	return strings.ReplaceAll(label, "\x00", "?")
}

func heldByOthers(o *cli.Options, e *errand, err error) error {
	if e.quiet {
		return cli.Silent(e.heldCode)
	}
	text, tells := fmt.Sprintf("lock %s is held", shown.Name(e.name)), "show"
	var held *pglock.HeldError
	switch {
	case !errors.As(err, &held):
	case held.Grace:
		text = fmt.Sprintf("lock %s is not granted yet, because of a failover", shown.Name(e.name))
	case held.By != "":
		text = fmt.Sprintf("lock %s is not free: %s %s %s, which lies above or below", shown.Name(e.name),
			shown.Text(held.Holder), shown.Either(held.Token == 0, "came first, and waits for", "holds"),
			shown.Name(held.By))
		tells = "why"
	case held.Holder != "" && held.Token == 0:
		text = fmt.Sprintf("lock %s is not free: %s waits for it, and goes first", shown.Name(e.name),
			shown.Text(held.Holder))
		tells = "why"
	case held.Holder != "":
		text += fmt.Sprintf(" by %s with token %d", shown.Text(held.Holder), int64(held.Token))
	default:
		text = fmt.Sprintf("nobody holds lock %s, and it is not free: a transaction has locked its row, or a waiter "+
			"is next", shown.Name(e.name))
		tells = "why"
	}
	hint := shown.Either(e.try || e.wait == 0, "--wait 10m, to wait for it", "--wait with a longer duration")
	return ending(e.heldCode, hint+"; pglock-admin "+tells+" "+shown.Name(e.name)+o.Same()+" tells more",
		"%s; COMMAND has not run", text)
}

// environment is what the command gets. What another run has set around this one does not count.
func (e *errand) environment(g pglock.Grant) []string {
	values := map[string]string{
		"PGLOCK_NAME":        g.Lock,
		"PGLOCK_TOKEN":       strconv.FormatInt(int64(g.Token), 10),
		"PGLOCK_RESOURCE":    g.Resource,
		"PGLOCK_SLOT":        strconv.Itoa(g.Slot),
		"PGLOCK_SCHEMA":      g.Schema,
		"PGLOCK_DATABASE_ID": g.DatabaseID.String(),
		"PGLOCK_GRANT_ID":    g.ID.String(),
		"PGLOCK_KEY":         e.record,
	}
	env := slices.DeleteFunc(os.Environ(), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		_, ours := values[name]
		return ours
	})
	if !e.marks {
		delete(values, "PGLOCK_KEY")
	}
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	return env
}

// errNotDone takes the question whether a key is done back.
var errNotDone = errors.New("not done")

// isDone asks whether the key is done, and leaves no trace.
func (r *runner) isDone(ctx context.Context) error {
	ctx, cancel := r.options.Bounded(ctx)
	defer cancel()
	ask := func(context.Context, pgx.Tx) error { return errNotDone }
	err := r.store.With(r.errand.once...).Once(ctx, r.lease, r.errand.record, ask)
	var done *fencedstore.DoneError
	switch {
	case errors.Is(err, errNotDone):
		return nil
	case errors.As(err, &done) && r.errand.quiet:
		return cli.Silent(r.errand.doneCode)
	case errors.As(err, &done):
		return ending(r.errand.doneCode, "another KEY; or --done-exit-code 0, if this is not an error for you",
			"%s was done at %s, under token %d of lock %s; COMMAND has not run",
			shown.Word(done.Key), cli.Moment(done.At), int64(done.Token), shown.Name(done.Lock))
	case errors.Is(err, fencedstore.ErrKeyTooOld):
		return ending(ExitRunBase+cli.ExitUsage, "a newer KEY, or a longer --keep everywhere",
			"%s is older than --keep %s; nobody knows any more whether it is done, so COMMAND has not run",
			shown.Word(r.errand.record), shown.Duration(r.errand.keep))
	}
	return cli.Because(ctx, err)
}

// markAgain is the pause before run records the key again, while the server is away.
const markAgain = 100 * time.Millisecond

// mark records that the key is done. The command may have done so itself, in a transaction under the same lease.
func (r *runner) mark(ctx context.Context) error {
	ctx, cancel := r.options.Bounded(ctx)
	defer cancel()
	nothing := func(context.Context, pgx.Tx) error { return nil }
	var err error
	isAway := func() bool { return cli.Lost(err) || cli.Is[*pgconn.ConnectError](err) }
	for again := true; again; again = r.lease.Valid() && isAway() && pause.For(ctx, markAgain) {
		err = r.store.With(r.errand.once...).Once(ctx, r.lease, r.errand.record, nothing)
		var done *fencedstore.DoneError
		if err == nil || errors.As(err, &done) && done.Lock == r.lease.Name() && done.Token == r.lease.Token() {
			return nil
		}
	}
	text := fmt.Sprintf(shown.Either(errors.Is(err, pglock.ErrOutcomeUnknown),
		"COMMAND has succeeded, but nobody knows whether %s is recorded as done",
		"COMMAND has succeeded, but %s is not recorded as done"), shown.Word(r.errand.record))
	return &cli.Advised{Text: text, Err: cli.Because(ctx, err), Code: ExitUnmarked, Final: true,
		Hint: "look at what COMMAND has done: the next run may run it again"}
}

// release gives the lock back, and tells when it was lost before. Its error comes after that of the command.
func (r *runner) release(ctx context.Context, client *pglock.Client, err error) error {
	ctx, cancel := context.WithTimeout(ctx, min(r.options.Timeout, r.errand.ttl))
	defer cancel()
	released := r.lease.Release(ctx)
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer done()
	closed := client.Close(closing)
	var own *cli.Advised
	switch {
	case errors.Is(released, pglock.ErrLost) && !(errors.As(err, &own) && own.Final):
		return r.lost(released)
	case released != nil && !errors.Is(released, pglock.ErrLost):
		r.note("it is unknown whether lock %s was released: %s; it is free in %s at the latest",
			shown.Name(r.errand.name), cli.Message(released), shown.Duration(r.errand.ttl))
	case closed != nil && released == nil:
		r.note("the server was not told all: %s", cli.Message(closed))
	}
	return err
}

func (r *runner) lost(err error) error {
	show := "pglock-admin show " + shown.Name(r.errand.name) + r.options.Same()
	return ending(ExitLost, cli.Again+", if the work can be repeated; "+show+" tells who holds the lock now",
		"%s%s; %s", r.loss(err), r.successor(), r.fate())
}

// successor says who was granted the lock after the loss, if the server tells it soon. The loss itself asks nobody.
func (r *runner) successor() (text string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the command has ended
	defer cancel()
	admin, err := lockadmin.New(ctx, r.pool, lockadmin.WithSchema(r.options.Schema))
	if err != nil {
		return ""
	}
	infos, _ := admin.Holders(ctx, r.errand.name)
	for _, i := range infos {
		if i.Held && i.Token > r.lease.Token() && i.Slot == r.lease.Slot() {
			text = fmt.Sprintf("; %s has held it since %s", shown.Text(i.Holder), cli.Moment(i.AcquiredAt))
		}
	}
	return text
}

func (r *runner) loss(err error) string {
	name := shown.Name(r.errand.name)
	e, is := errors.AsType[*pglock.LostError](err)
	if !is {
		return "the lease of lock " + name + " was not renewed in time"
	}
	text := map[pglock.Reason]string{
		pglock.ReasonExpired:   "the lease of lock " + name + " was not renewed in time",
		pglock.ReasonBroken:    "somebody has broken lock " + name,
		pglock.ReasonTakenOver: "the lease of lock " + name + " has ended, and somebody else holds it",
		pglock.ReasonReleased:  "COMMAND, or somebody else who knows its grant ID, has released lock " + name,
		pglock.ReasonUnknown:   "the lease of lock " + name + " has ended, and the database does not say why",
	}[e.Reason]
	if e.Err != nil {
		text += ": " + cli.Message(e.Err)
	}
	return text
}
