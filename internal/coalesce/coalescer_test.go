package coalesce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// order is what the calls of these tests ask for. The answer to it is its number.
type order struct {
	name, kind string
	n          int
}

// dispatch is one statement that a coalescer has sent and that the test answers.
type dispatch struct {
	ctx    context.Context
	orders []order
	reply  chan error
}

// answer answers all of its calls.
func (d *dispatch) answer() { d.reply <- nil }

func (d *dispatch) fail(err error) { d.reply <- err }

// String is for whom it was sent.
func (d *dispatch) String() string {
	names := make([]string, len(d.orders))
	for i, o := range d.orders {
		names[i] = fmt.Sprint(o.name, o.n)
	}
	return strings.Join(names, " ")
}

// depot is a coalescer whose statements the test answers.
type depot struct {
	*Coalescer[*pgx.Conn, order, int]
	pool      *pgxpool.Pool
	end       context.CancelFunc // of its life
	sent      chan *dispatch
	abandoned chan heard // what came for calls that had left
}

var (
	errShut  = errors.New("shut")
	errReset = errors.New("connection reset by peer")
)

const (
	limit = 10 * time.Second
	bound = 20 * time.Millisecond // for which a statement that hangs holds up others, as the protocol says
)

func newDepot(t *testing.T, width int) *depot {
	d := &depot{pool: mutePool(t), sent: make(chan *dispatch, 1000), abandoned: make(chan heard, 10_000)}
	life, end := context.WithCancel(context.Background())
	d.end = end
	d.Coalescer = New(Config[*pgx.Conn, order, int]{Width: width, Life: life, Limit: limit, ErrShut: errShut,
		Lend: func(ctx context.Context) (*pgx.Conn, func(), error) {
			conn, err := d.pool.Acquire(ctx)
			if err != nil {
				return nil, nil, err
			}
			return conn.Conn(), conn.Release, nil
		},
		Send: func(ctx context.Context, _ *pgx.Conn, orders []order) ([]int, error) {
			s := &dispatch{ctx, orders, make(chan error, 1)}
			d.sent <- s
			select {
			case err := <-s.reply:
				return numbers(orders), err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		Undone:    func(err error) bool { return !protocol.ConnectionLost(err) },
		Passes:    func(err error) bool { return protocol.Transient(err) && !protocol.LockedOut(err) },
		Abandoned: func(o order, a int, err error) { d.abandoned <- heard{o.n, a, err} }})
	t.Cleanup(func() {
		d.end()
		d.Shut()
		d.Wait()
	})
	return d
}

func neverSent(err error) bool {
	var unsent *NotSentError
	return errors.As(err, &unsent)
}

// numbers are the answers.
func numbers(orders []order) (answers []int) {
	for _, o := range orders {
		answers = append(answers, o.n)
	}
	return answers
}

// mutePool has connections to a server that greets and says no more.
func mutePool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config := must.Get(pgxpool.ParseConfig("host=nowhere user=nobody dbname=nothing sslmode=disable"))(t)
	var servers sync.WaitGroup
	config.MaxConns = 10
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	config.ConnConfig.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		servers.Go(func() { greet(far) })
		return near, nil
	}
	pool := must.Get(pgxpool.NewWithConfig(context.Background(), config))(t)
	t.Cleanup(func() { pool.Close(); servers.Wait() })
	return pool
}

func greet(conn net.Conn) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for err := backend.Flush(); err == nil; {
		_, err = backend.Receive()
	}
}

// heard is what a call came back with.
type heard struct {
	n, a int
	err  error
}

// call makes a call and returns once it has been sent or waits. It works only in a bubble.
func (d *depot) call(ctx context.Context, o order) <-chan heard {
	got := must.Go(func() heard { a, err := d.Do(ctx, o); return heard{o.n, a, err} })
	synctest.Wait()
	return got
}

// next returns the statement that was sent, which must be this one.
func (d *depot) next(t *testing.T, want string) *dispatch {
	t.Helper()
	synctest.Wait()
	select {
	case s := <-d.sent:
		if s.String() != want {
			t.Fatalf("sent: %q, want %q", s, want)
		}
		return s
	default:
		t.Fatalf("nothing was sent, want %q", want)
		return nil
	}
}

// quiet fails when anything has been sent.
func (d *depot) quiet(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if len(d.sent) > 0 {
		t.Fatalf("sent: %q, want nothing", <-d.sent)
	}
}

// must expects a call that has returned by now, with this answer.
func answered(t *testing.T, got <-chan heard, want int) {
	t.Helper()
	if h := back(t, got); h.err != nil || h.a != want {
		t.Errorf("call %d: %+v", want, h)
	}
}

func back(t *testing.T, got <-chan heard) heard {
	t.Helper()
	synctest.Wait()
	select {
	case h := <-got:
		return h
	default:
		t.Fatal("the call has not come back")
		return heard{}
	}
}

func refusal(code string) error { return &pgconn.PgError{Severity: "ERROR", Code: code, Message: code} }

// A call that is alone goes at once, and waits for nothing but its answer.
func TestLoneCallGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 2)
		for n := range 3 {
			began := time.Now()
			got := d.call(t.Context(), order{name: "a", n: n})
			d.next(t, fmt.Sprint("a", n)).answer()
			answered(t, got, n)
			if time.Since(began) != 0 || d.timer != nil || d.underWay != 0 || d.pool.Stat().AcquiredConns() != 0 {
				t.Errorf("it took %v, timer %v, %d statements under way, %d connections", time.Since(began), d.timer,
					d.underWay,
					d.pool.Stat().AcquiredConns())
			}
		}
		if n := d.pool.Stat().NewConnsCount(); n != 1 {
			t.Errorf("%d connections were made for calls one after the other", n)
		}
	})
}

// As many statements as the width go at once. The calls that come meanwhile go together when the first statement has
// ended, in the order of arrival, and each gets its own answer.
func TestCallsThatComeMeanwhileGoTogetherInTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 2)
		a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
		first, second := d.next(t, "a1"), d.next(t, "b2")
		var got []<-chan heard
		for i, name := range []string{"e", "c", "d"} {
			got = append(got, d.call(t.Context(), order{name: name, n: 10 + i}))
		}
		d.quiet(t)
		second.answer()
		answered(t, b, 2)
		together := d.next(t, "e10 c11 d12")
		d.quiet(t)
		together.answer()
		for i, g := range got {
			answered(t, g, 10+i)
		}
		first.answer()
		answered(t, a, 1)
	})
}

// One call that waits goes when its turn comes.
func TestOneCallThatWaitedGoesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		a := d.call(t.Context(), order{name: "a", n: 1})
		b := d.call(t.Context(), order{name: "b", n: 2})
		d.next(t, "a1").answer()
		answered(t, a, 1)
		s := d.next(t, "b2")
		c := d.call(t.Context(), order{name: "c", n: 3}) // the place of the first is now b's
		d.quiet(t)
		s.answer()
		answered(t, b, 2)
		d.next(t, "c3").answer()
		answered(t, c, 3)
	})
}

// Calls for one lock are sent in the order in which they came, also in one statement.
func TestOrderWithinOneLockIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		var got []<-chan heard
		for i, name := range []string{"first", "x", "a", "x", "x", "b", "x"} {
			got = append(got, d.call(t.Context(), order{name: name, n: i}))
		}
		for _, want := range []string{"first0", "x1 a2 x3 x4 b5 x6"} {
			s := d.next(t, want)
			d.quiet(t)
			s.answer()
		}
		for i, g := range got {
			answered(t, g, i)
		}
	})
}

// A statement carries most calls at most; the others go in the next, and none is forgotten.
func TestStatementCarriesNoMoreThanTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		const calls = 2*most - 10
		var got []<-chan heard
		for i := range 1 + calls {
			got = append(got, d.call(t.Context(), order{name: fmt.Sprint("lock", i, "-"), n: i}))
		}
		for _, want := range []int{1, most, calls - most} {
			if synctest.Wait(); len(d.sent) != 1 {
				t.Fatalf("%d statements under way, want one for %d", len(d.sent), want)
			}
			s := <-d.sent
			if len(s.orders) != want {
				t.Fatalf("%d calls in one statement, want %d", len(s.orders), want)
			}
			s.answer()
		}
		for i, g := range got {
			answered(t, g, i)
		}
	})
}

// A coalescer may carry fewer.
func TestStatementCarriesNoMoreThanItsCoalescerMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 2)
		d.Most = 1
		var got []<-chan heard
		for i, name := range []string{"a", "b", "c", "d"} {
			got = append(got, d.call(t.Context(), order{name: name, n: i}))
		}
		first, second := d.next(t, "a0"), d.next(t, "b1")
		d.quiet(t)
		second.answer()
		third := d.next(t, "c2")
		first.answer()
		d.next(t, "d3").answer()
		third.answer()
		for i, g := range got {
			answered(t, g, i)
		}
	})
}

// A statement that the server refuses is repeated in parts, until those that it refuses are alone. They get their own
// refusal, after several attempts if its reason may pass. The others are answered, each once.
func TestRefusedCallFailsAloneWithItsOwnError(t *testing.T) {
	for code, attempts := range map[string]int{"23514": 1, "22023": 1, "40P01": attempts, "55P03": 1,
		"57014": attempts} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(t, 1)
				const calls = 16
				bad := []int{3, 4, 11}
				first := d.call(t.Context(), order{name: "first", n: 100})
				got := make([]<-chan heard, calls)
				for i := range got {
					got[i] = d.call(t.Context(), order{name: fmt.Sprint("lock", i, "-"), n: i})
				}
				d.next(t, "first100").answer()
				answered(t, first, 100)
				answered, alone := make(map[int]int), make(map[int]int)
				together := 0
				serving, done := context.WithCancel(t.Context())
				go func() {
					for {
						select {
						case s := <-d.sent:
							i := slices.IndexFunc(s.orders, func(o order) bool { return slices.Contains(bad, o.n) })
							if len(s.orders) == 1 && i == 0 {
								alone[s.orders[0].n]++
							} else {
								together++
							}
							if i >= 0 {
								s.fail(&pgconn.PgError{Code: code, Message: fmt.Sprint("refused ", s.orders[i].n)})
								continue
							}
							for _, o := range s.orders {
								answered[o.n]++
							}
							s.answer()
						case <-serving.Done():
							return
						}
					}
				}()
				for i, g := range got {
					h := <-g
					switch {
					case !slices.Contains(bad, i):
						if h.err != nil || h.a != i {
							t.Errorf("call %d: %+v", i, h)
						}
					case protocol.State(h.err) != code || protocol.Message(h.err) != fmt.Sprint("refused ", i):
						t.Errorf("call %d: %+v, want its own refusal", i, h)
					}
				}
				done()
				synctest.Wait()
				for i := range got {
					if want := 1; !slices.Contains(bad, i) && answered[i] != want {
						t.Errorf("call %d was answered %d times", i, answered[i])
					} else if slices.Contains(bad, i) && alone[i] != attempts {
						t.Errorf("call %d was asked for alone %d times, want %d", i, alone[i], attempts)
					}
				}
				if most := 2*len(bad)*4 + 1; together > most { // a path of halves to each
					t.Errorf("%d statements to find %d refused of %d calls, want %d at most", together, len(bad), calls,
						most)
				}
			})
		})
	}
}

// What the server undoes for a reason that passes is asked again until it is done.
func TestCallThatIsUndoneForAReasonThatPassesIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		a := d.call(t.Context(), order{name: "a", n: 1})
		for range attempts - 1 {
			d.next(t, "a1").fail(refusal("40P01"))
			time.Sleep(attempts * 2 * time.Millisecond)
		}
		d.next(t, "a1").answer()
		answered(t, a, 1)
	})
}

// When the connection ends, the fate of the statement is unknown: every call hears that, and nothing is sent again
// here.
func TestLostConnectionIsToldToAllAndNothingIsSentAgain(t *testing.T) {
	for what, lost := range map[string]error{"reset": errors.New("connection reset"), "terminated": refusal("57P01"),
		"unconfirmed": protocol.ErrUnconfirmed} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(t, 1)
				first := d.call(t.Context(), order{name: "first"})
				a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
				d.next(t, "first0").answer()
				answered(t, first, 0)
				d.next(t, "a1 b2").fail(lost)
				for _, g := range []<-chan heard{a, b} {
					if h := back(t, g); !errors.Is(h.err, lost) || neverSent(h.err) {
						t.Errorf("%+v, want %v", h, lost)
					}
				}
				d.quiet(t)
			})
		})
	}
}

// Calls whose context ends before they are sent come back at once, are not sent, and say so.
func TestCallThatGivesUpBeforeItIsSentIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		a, b, c, e := d.call(t.Context(), order{name: "a", n: 1}), d.call(ctx,
			order{name: "b", n: 2}), d.call(t.Context(), order{name: "c", n: 3}), d.call(ctx, order{name: "e", n: 4})
		cancel()
		for _, g := range []<-chan heard{b, e} {
			if h := back(t, g); !errors.Is(h.err, context.Canceled) || !neverSent(h.err) {
				t.Errorf("%+v, want a cancelled call that was never sent", h)
			}
		}
		d.next(t, "first0").answer()
		answered(t, first, 0)
		d.next(t, "a1 c3").answer()
		answered(t, a, 1)
		answered(t, c, 3)
	})
}

// A hundred thousand calls may end together while they wait for a connection: each returns soon.
func TestManyCallsThatGiveUpTogetherHoldUpNobody(t *testing.T) {
	d := newDepot(t, 1)
	feed := d.starve(t)
	stays := must.Go(func() heard { a, err := d.Do(t.Context(), order{name: "a", n: 1}); return heard{1, a, err} })
	pgtest.Eventually(t, "a call that waits", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.waiting) == 1
	})
	calls := make([]*call[order, int], 100_000) // without a goroutine each
	for i := range calls {
		calls[i] = &call[order, int]{done: make(chan struct{})}
	}
	d.mu.Lock()
	d.waiting = append(d.waiting, calls...)
	d.mu.Unlock()
	began := time.Now()
	for n, i := range rand.Perm(len(calls)) {
		if err, gone := d.leave(calls[i], context.Canceled); !gone || !neverSent(err) {
			t.Fatalf("call %d: %v, has left: %v", i, err, gone)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Fatalf("%d of %d have left in %v", n, len(calls), took)
		}
	}
	feed()
	s := <-d.sent
	if s.answer(); s.String() != "a1" {
		t.Errorf("sent: %q, want the call that has stayed", s)
	}
	if h := <-stays; h.err != nil || h.a != 1 {
		t.Errorf("%+v", h)
	}
}

// A call whose context has ended is refused at once: an answer that comes soon would win the race now and then.
func TestCallUnderAnEndedContextIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if h := back(t, d.call(ctx, order{name: "a", n: 1})); !errors.Is(h.err, context.Canceled) || !neverSent(h.err) {
			t.Errorf("%+v, want a cancelled call that was never sent", h)
		}
		if stat := d.pool.Stat(); stat.AcquireCount()+stat.CanceledAcquireCount() > 0 {
			t.Error("it asked for a connection")
		}
		b := d.call(t.Context(), order{name: "b", n: 2})
		d.next(t, "b2").answer()
		answered(t, b, 2)
	})
}

// wasAbandoned is what came for a call that had left.
func (d *depot) wasAbandoned(t *testing.T) heard {
	t.Helper()
	synctest.Wait()
	select {
	case h := <-d.abandoned:
		return h
	default:
		t.Fatal("nothing came for the call that had left")
		return heard{}
	}
}

// Calls whose context ends while their statement is under way return at once, and do not say that they were never
// sent. The statement continues for the others, and the answer to those who have left is abandoned.
func TestCallThatGivesUpUnderWayLeavesTheOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		a, b, c := d.call(t.Context(), order{name: "a", n: 1}), d.call(ctx, order{name: "b", n: 2}), d.call(t.Context(),
			order{name: "c", n: 3})
		d.next(t, "first0").answer()
		answered(t, first, 0)
		s := d.next(t, "a1 b2 c3")
		cancel(gone)
		var under *LeftError
		if h := back(t, b); !errors.Is(h.err, context.Canceled) || !errors.As(h.err, &under) || neverSent(h.err) {
			t.Errorf("%+v, want a cancelled call that may have been sent", h)
		}
		if s.ctx.Err() != nil || len(d.abandoned) != 0 {
			t.Errorf("the statement was ended for the others too: %v; %d answers", s.ctx.Err(), len(d.abandoned))
		}
		s.answer()
		answered(t, a, 1)
		answered(t, c, 3)
		if h := d.wasAbandoned(t); h != (heard{2, 2, nil}) || len(d.abandoned) != 0 {
			t.Errorf("for the call that had left came %+v, and %d more", h, len(d.abandoned))
		}
	})
}

// The answer to a call that has left may require a connection: by then the statement has given back its own, and its
// place.
func TestAnswerToACallThatHasLeftComesWhenTheConnectionIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		told := make(chan [2]int, 1)
		d.Abandoned = func(order, int, error) {
			told <- [2]int{int(d.pool.Stat().AcquiredConns()), d.underWay}
		}
		ctx, cancel := context.WithCancel(t.Context())
		a := d.call(ctx, order{name: "a", n: 1})
		s := d.next(t, "a1")
		cancel()
		back(t, a)
		s.answer()
		if got := <-told; got != [2]int{} {
			t.Errorf("%d connections and %d places were still taken", got[0], got[1])
		}
	})
}

// A refused statement is asked again without those that have given up: nothing was done for them.
func TestCallThatHasGivenUpIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		var got []<-chan heard
		for i, c := range []context.Context{ctx, t.Context(), ctx, ctx} {
			got = append(got, d.call(c, order{name: "abcd"[i : i+1], n: i}))
		}
		d.next(t, "first0").answer()
		answered(t, first, 0)
		s := d.next(t, "a0 b1 c2 d3")
		cancel()
		synctest.Wait()
		s.fail(refusal("40P01"))
		time.Sleep(2 * time.Millisecond)
		d.next(t, "b1").answer()
		d.quiet(t)
		answered(t, got[1], 1)
		for range 3 {
			if h := d.wasAbandoned(t); protocol.State(h.err) != "40P01" || h.n == 1 {
				t.Errorf("for a call that had left came %+v, want the refusal", h)
			}
		}
	})
}

// A single call that has given up is not repeated either.
func TestLoneCallThatHasGivenUpIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		a := d.call(ctx, order{name: "a", n: 1})
		s := d.next(t, "a1")
		cancel()
		back(t, a)
		s.fail(refusal("40P01"))
		time.Sleep(time.Second)
		d.quiet(t)
		if h := d.wasAbandoned(t); protocol.State(h.err) != "40P01" {
			t.Errorf("%+v", h)
		}
	})
}

// Nor is one that gives up while the others' half is under way, or in the pause before it is sent again.
func TestCallThatGivesUpMeanwhileIsNotAskedForAgain(t *testing.T) {
	for when, code := range map[string]string{"in the first half": "55P03", "in the pause": "40P01"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(t, 1)
				ctx, cancel := context.WithCancel(t.Context())
				first := d.call(t.Context(), order{name: "first"})
				a, b := d.call(t.Context(), order{name: "a", n: 0}), d.call(ctx, order{name: "b", n: 1})
				d.next(t, "first0").answer()
				answered(t, first, 0)
				d.next(t, "a0 b1").fail(refusal(code))
				half := d.next(t, "a0")
				if when == "in the pause" {
					half.answer()
					d.next(t, "b1").fail(refusal(code))
					synctest.Wait()
				}
				cancel()
				if h := back(t, b); !errors.As(h.err, new(*LeftError)) {
					t.Errorf("%+v, want that the call has left", h)
				}
				if when == "in the first half" {
					half.answer()
				}
				answered(t, a, 0)
				time.Sleep(time.Second)
				d.quiet(t)
				if h := d.wasAbandoned(t); protocol.State(h.err) != code || h.n != 1 {
					t.Errorf("for the call that had left came %+v, want the refusal", h)
				}
			})
		})
	}
}

// A statement whose calls have all given up continues, because the server may have carried it out: until it is
// answered, at most for its limit, or until the coalescer is closed. It delays later calls no longer than any other
// statement.
func TestStatementGoesOnWhenAllItsCallsHaveGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(*depot, *dispatch)
		took time.Duration
		err  error
	}{
		"answered":      {func(_ *depot, s *dispatch) { s.answer() }, 0, nil},
		"lost":          {func(_ *depot, s *dispatch) { s.fail(errReset) }, 0, errReset},
		"silent":        {func(*depot, *dispatch) {}, limit, context.DeadlineExceeded},
		"end of a life": {func(d *depot, _ *dispatch) { d.end() }, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(t, 1)
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				a := d.call(ctx, order{name: "a", n: 1})
				s := d.next(t, "a1")
				cancel()
				back(t, a)
				if s.ctx.Err() != nil {
					t.Fatal("the statement was ended because nobody waits for it")
				}
				if name != "end of a life" {
					b := d.call(t.Context(), order{name: "b", n: 2})
					d.quiet(t)
					time.Sleep(bound)
					d.next(t, "b2").answer()
					answered(t, b, 2)
					began = began.Add(bound)
				}
				tc.end(d, s)
				h := <-d.abandoned
				if name == "silent" {
					began = began.Add(-bound)
				}
				if took := time.Since(began); !errors.Is(h.err, tc.err) || h.err == nil && h.a != 1 || took != tc.took {
					t.Errorf("after %v came %+v, want %v after %v", took, h, tc.err, tc.took)
				}
				synctest.Wait()
				if d.underWay != 0 {
					t.Errorf("%d statements under way", d.underWay)
				}
			})
		})
	}
}

// A hanging statement delays others for the bound, and no longer; when it returns after all, the coalescer is no
// wider than before.
func TestHangingStatementHoldsUpOthersForTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		hung := d.call(t.Context(), order{name: "hung", n: 1})
		s := d.next(t, "hung1")
		a := d.call(t.Context(), order{name: "a", n: 2})
		time.Sleep(bound / 2)
		b := d.call(t.Context(), order{name: "b", n: 3})
		time.Sleep(bound/2 - 1)
		d.quiet(t)
		time.Sleep(time.Nanosecond)
		together := d.next(t, "a2 b3")
		s.answer() // it comes back while its place is taken
		answered(t, hung, 1)
		if d.underWay != 1 {
			t.Fatalf("%d statements under way, want the one", d.underWay)
		}
		c := d.call(t.Context(), order{name: "c", n: 4})
		e := d.call(t.Context(), order{name: "e", n: 5})
		d.quiet(t)
		together.answer()
		answered(t, a, 2)
		answered(t, b, 3)
		d.next(t, "c4 e5").answer()
		answered(t, c, 4)
		answered(t, e, 5)
		if d.underWay != 0 {
			t.Errorf("%d statements under way", d.underWay)
		}
	})
}

// A statement for several that hangs holds up others for the bound too.
func TestHangingStatementForManyHoldsUpOthersForTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		first := d.call(t.Context(), order{name: "first"})
		a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
		d.next(t, "first0").answer()
		answered(t, first, 0)
		hung := d.next(t, "a1 b2")
		c, e := d.call(t.Context(), order{name: "c", n: 3}), d.call(t.Context(), order{name: "e", n: 4})
		d.quiet(t)
		time.Sleep(bound)
		d.next(t, "c3 e4").answer()
		answered(t, c, 3)
		answered(t, e, 4)
		hung.answer()
		answered(t, a, 1)
		answered(t, b, 2)
	})
}

// senders counts the goroutines that send statements, or wait for one to send.
func senders() int {
	stacks := make([]byte, 1<<22)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("]).next.func"))
}

// A sender stays for the next statement, but no more of them than can be under way.
func TestAsManySendersStayAsMayBeUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 2)
		for round := range 3 {
			var got []<-chan heard
			var hung []*dispatch
			for i := range 6 { // the third one stalls the first two, the fifth one the next
				n := 10*round + i
				got = append(got, d.call(t.Context(), order{name: "a", n: n}))
				if i%2 == 0 && i > 0 {
					time.Sleep(bound)
				}
				hung = append(hung, d.next(t, fmt.Sprint("a", n)))
			}
			for i, s := range hung {
				s.answer()
				answered(t, got[i], 10*round+i)
			}
			synctest.Wait()
			if n := senders(); n != 2 || d.idle != 2 {
				t.Errorf("%d senders stay, and %d wait, want 2", n, d.idle)
			}
		}
	})
}

// starve takes every connection of the pool.
func (d *depot) starve(t *testing.T) (feed func()) {
	t.Helper()
	var conns []*pgxpool.Conn
	for range d.pool.Config().MaxConns {
		conn := must.Get(d.pool.Acquire(t.Context()))(t)
		conns = append(conns, conn)
	}
	feed = sync.OnceFunc(func() {
		for _, c := range conns {
			c.Release()
		}
	})
	t.Cleanup(feed)
	return feed
}

// Calls for which there is no connection wait for one as long as their own contexts let them, and no longer.
func TestCallsWithoutAConnectionWaitAsLongAsTheyWant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		feed := d.starve(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, b, c := d.call(ctx, order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2}), d.call(t.Context(),
			order{name: "c", n: 3})
		time.Sleep(time.Minute - 1)
		for _, g := range []<-chan heard{a, b, c} {
			if len(g) > 0 {
				t.Fatalf("a call came back before its context had ended: %+v", <-g)
			}
		}
		time.Sleep(time.Nanosecond)
		if h := back(t, a); !errors.Is(h.err, context.DeadlineExceeded) || !neverSent(h.err) {
			t.Errorf("%+v", h)
		}
		time.Sleep(time.Minute)
		feed()
		d.next(t, "b2 c3").answer()
		answered(t, b, 2)
		answered(t, c, 3)
	})
}

// However long there is no connection, only as many goroutines as the width wait for one, and none when no call waits
// any more: then nothing is left to be ended.
func TestCallsWithoutAConnectionLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		d.starve(t)
		ctx, cancel := context.WithCancel(t.Context())
		a, b := d.call(ctx, order{name: "a", n: 1}), d.call(ctx, order{name: "b", n: 2})
		time.Sleep(5 * time.Second)
		if n := senders(); n < 1 || n > d.Width {
			t.Errorf("%d goroutines wait for a connection, want 1 to %d", n, d.Width)
		}
		cancel()
		back(t, a)
		back(t, b)
		synctest.Wait()
		if d.underWay != 0 || d.lending != nil {
			t.Errorf("%d statements are under way although nobody waits", d.underWay)
		}
	})
}

// When a connection cannot be made, those that wait for it hear why, and those that come later are tried anew.
func TestFailureToConnectIsToldToThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		d.Most = 1 // whatever a statement carries
		dead, fails := errors.New("no route to host"), make(chan struct{})
		dials := make(chan struct{}, 10)
		pool := d.pool
		config := pool.Config()
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			dials <- struct{}{}
			<-fails
			return nil, dead
		}
		broken, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer broken.Close()
		d.pool = broken
		var got []<-chan heard
		for n := range 3 {
			got = append(got, d.call(t.Context(), order{name: "a", n: n}))
		}
		synctest.Wait()
		close(fails)
		for _, g := range got {
			if h := back(t, g); !errors.Is(h.err, dead) || !neverSent(h.err) {
				t.Errorf("%+v, want that nothing was sent as there is no route", h)
			}
		}
		if len(dials) != 1 {
			t.Errorf("%d attempts to connect for calls that wait together", len(dials))
		}
		d.pool = pool
		again := d.call(t.Context(), order{name: "a", n: 7})
		d.next(t, "a7").answer()
		answered(t, again, 7)
	})
}

// A statement may get its connection just when, or just before, the last call that waited for it gives up. Calls that
// come then travel in it or in the next, and do not end with it.
func TestCallsThatComeWhenTheLastOneHasLeftGoOn(t *testing.T) {
	d := newDepot(t, 1)
	d.Send = func(ctx context.Context, _ *pgx.Conn, orders []order) ([]int, error) {
		return numbers(orders), ctx.Err()
	}
	for round := range 200 {
		feed := d.starve(t)
		ctx, cancel := context.WithCancel(context.Background())
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = d.Do(ctx, order{name: "first"}) })
		for waits := false; !waits; runtime.Gosched() {
			d.mu.Lock()
			waits = len(d.waiting) == 1
			d.mu.Unlock()
		}
		calls.Go(feed)
		calls.Go(cancel)
		for n := range 3 {
			calls.Go(func() {
				for range round % 50 {
					runtime.Gosched()
				}
				if a, err := d.Do(context.Background(), order{name: fmt.Sprint("late", n), n: n}); err != nil ||
					a != n {
					t.Errorf("call %d of round %d: %d, %v", n, round, a, err)
				}
			})
		}
		if calls.Wait(); t.Failed() {
			return
		}
	}
}

// The same, step by step: the last one leaves, and another comes before the wait for a connection has ended.
func TestCallThatComesWhileTheBoardingIsCancelledGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		feed := d.starve(t)
		ctx, cancel := context.WithCancel(t.Context())
		a := d.call(ctx, order{name: "a", n: 1})
		late := &call[order, int]{q: order{name: "b", n: 2}, done: make(chan struct{})}
		d.mu.Lock()
		lending := d.lending
		d.lending = func() { lending(); d.waiting = append(d.waiting, late) }
		d.mu.Unlock()
		cancel()
		if h := back(t, a); !neverSent(h.err) {
			t.Errorf("%+v", h)
		}
		time.Sleep(time.Second)
		feed()
		d.next(t, "b2").answer()
		<-late.done
		if late.err != nil || late.a != 2 {
			t.Errorf("the call that came then: %d, %v", late.a, late.err)
		}
	})
}

// A coalescer that is shut refuses what comes and what still waits. What is under way ends as it would have.
func TestCoalescerThatIsShutRefusesWhatWaitsAndEndsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
		s := d.next(t, "a1")
		ended := make(chan struct{})
		go func() { d.Shut(); d.Wait(); close(ended) }()
		for _, g := range []<-chan heard{b, d.call(t.Context(), order{name: "c", n: 3})} {
			if h := back(t, g); !errors.Is(h.err, errShut) || !neverSent(h.err) {
				t.Errorf("%+v, want errShut", h)
			}
		}
		select {
		case <-ended:
			t.Error("it has ended while a statement was under way")
		default:
		}
		s.answer()
		answered(t, a, 1)
		<-ended
		d.quiet(t)
		d.Shut()
	})
}

// A coalescer that is shut does not wait for a connection.
func TestCoalescerThatIsShutWaitsForNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		d.starve(t)
		a := d.call(t.Context(), order{name: "a", n: 1})
		d.Shut()
		d.Wait()
		if h := back(t, a); !errors.Is(h.err, errShut) || !neverSent(h.err) {
			t.Errorf("%+v, want errShut", h)
		}
	})
}

// Calls of many goroutines; some give up, are refused, are undone for a while, or lose their connection. Each gets
// its own answer or its own error, what came for a call that had left is reported once, and nothing is left behind.
func TestEveryCallGetsItsOwnAnswer(t *testing.T) {
	lost := errors.New("lost")
	for width := 1; width <= 3; width++ {
		d := newDepot(t, width)
		var under, most int
		var mu sync.Mutex
		d.Send = func(ctx context.Context, _ *pgx.Conn, orders []order) ([]int, error) {
			mu.Lock()
			under++
			most = max(most, len(orders))
			mu.Unlock()
			defer func() { mu.Lock(); under--; mu.Unlock() }()
			for range rand.N(50) {
				runtime.Gosched()
			}
			for _, o := range orders {
				if o.kind == "refused" {
					return nil, refusal("22023")
				}
			}
			switch rand.N(50) {
			case 0:
				return nil, lost
			case 1:
				return nil, refusal("40P01")
			}
			return numbers(orders), ctx.Err()
		}
		var left, answered sync.Map // by number
		d.Abandoned = func(o order, a int, err error) {
			if _, again := answered.LoadOrStore(o.n, true); again {
				t.Errorf("%+v: a second answer", o)
			}
			switch {
			// refused with others: nothing was done
			case err == nil && a == o.n && o.kind == "", errors.Is(err, lost), protocol.State(err) != "":
			default:
				t.Errorf("after %+v had left came %d, %v", o, a, err)
			}
		}
		var callers sync.WaitGroup
		for caller := range 32 {
			callers.Go(func() {
				for round := range 80 {
					ctx, cancel := context.WithCancel(context.Background())
					o := order{name: fmt.Sprint(rand.N(40)), n: 1 + caller*1000 + round}
					if rand.N(20) == 0 {
						o.kind = "refused"
					}
					if rand.N(4) == 0 {
						go func() {
							for range rand.N(100) {
								runtime.Gosched()
							}
							cancel()
						}()
					}
					a, err := d.Do(ctx, o)
					var gone *LeftError
					switch {
					case err == nil && a == o.n && o.kind == "":
					case errors.Is(err, lost):
					case protocol.State(err) == "22023" && o.kind == "refused":
					case errors.As(err, &gone) && ctx.Err() != nil:
						left.Store(o.n, true)
					case errors.Is(err, context.Canceled) && ctx.Err() != nil && neverSent(err):
					default:
						t.Errorf("%+v: %d, %v", o, a, err)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		d.Shut()
		d.Wait()
		if d.underWay != 0 || len(d.waiting) != 0 || under != 0 {
			t.Errorf("%d under way, %d waiting, %d statements under way", d.underWay, len(d.waiting), under)
		}
		if most < 2 {
			t.Error("no two calls went together")
		}
		abandoned := 0
		left.Range(func(n, _ any) bool {
			abandoned++
			if _, told := answered.LoadAndDelete(n); !told {
				t.Errorf("nothing came for call %d, which had left", n)
			}
			return true
		})
		answered.Range(func(n, _ any) bool { t.Errorf("an answer for call %d, which had not left", n); return true })
		if abandoned == 0 {
			t.Error("no call left its statement")
		}
	}
}
