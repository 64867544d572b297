package pglock

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
)

// order is what the calls of these tests ask for. The answer to it is its number.
type order struct {
	name, kind string
	n          int
}

// dispatch is one statement that a lane has sent and that the test answers.
type dispatch struct {
	ctx    context.Context
	how    string // alone, many or after
	orders []order
	reply  chan reply
}

type reply struct {
	answers map[int]int
	err     error
}

// answer answers all but those with these names.
func (d *dispatch) answer(but ...string) {
	answers := make(map[int]int)
	for i, o := range d.orders {
		if !slices.Contains(but, o.name) {
			answers[i] = o.n
		}
	}
	d.reply <- reply{answers: answers}
}

func (d *dispatch) fail(err error) { d.reply <- reply{err: err} }

// String is how it was sent, and for whom.
func (d *dispatch) String() string {
	names := make([]string, len(d.orders))
	for i, o := range d.orders {
		names[i] = fmt.Sprint(o.name, o.n)
	}
	return d.how + " " + strings.Join(names, " ")
}

// depot is a lane whose statements the test answers.
type depot struct {
	*lane[order, int]
	sent chan *dispatch
}

func newDepot(t *testing.T, width int) *depot {
	d := &depot{sent: make(chan *dispatch, 1000)}
	send := func(ctx context.Context, how string, orders []order) (map[int]int, error) {
		s := &dispatch{ctx, how, orders, make(chan reply, 1)}
		d.sent <- s
		select {
		case r := <-s.reply:
			return r.answers, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	one := func(how string) func(context.Context, order) (int, error) {
		return func(ctx context.Context, o order) (int, error) {
			answers, err := send(ctx, how, []order{o})
			return answers[0], err
		}
	}
	d.lane = &lane[order, int]{store: &pgStore{pool: mutePool(t)}, width: width, alone: one("alone"), after: one("after"),
		many: func(ctx context.Context, _ *pgx.Conn, orders []order) (map[int]int, error) {
			return send(ctx, "many", orders)
		},
		name: func(o order) string { return o.name },
		fits: func(first, o order) bool { return first.kind == o.kind }}
	t.Cleanup(d.lane.close)
	return d
}

// mutePool has connections to a server that greets and says no more.
func mutePool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig("host=nowhere user=nobody dbname=nothing sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	var servers sync.WaitGroup
	config.MaxConns = 10
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	config.ConnConfig.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		servers.Go(func() { greet(far) })
		return near, nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
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
	a   int
	err error
}

// call makes a call and returns once it has been sent or waits. In a bubble alone.
func (d *depot) call(ctx context.Context, o order) <-chan heard {
	got := make(chan heard, 1)
	go func() {
		a, err := d.do(ctx, o)
		got <- heard{a, err}
	}()
	synctest.Wait()
	return got
}

// next is the statement that has been sent, which must be this one.
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

// must is a call that has come back by now, with this answer.
func must(t *testing.T, got <-chan heard, want int) {
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

// A call that is alone goes at once, in the goroutine and with the context of its caller: no goroutine, no timer and no
// connection of the pool is taken for it.
func TestLoneCallGoesAtOnceAndStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 2)
		for n := range 3 {
			began := time.Now()
			got := d.call(t.Context(), order{name: "a", n: n})
			s := d.next(t, fmt.Sprint("alone a", n))
			if s.ctx != t.Context() {
				t.Error("the call was sent with another context than its own")
			}
			stacks := make([]byte, 1<<20)
			if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte(".fly(")) {
				t.Error("a goroutine was started for the call")
			}
			s.answer()
			must(t, got, n)
			if time.Since(began) != 0 || d.timer != nil || d.flying != 0 {
				t.Errorf("it took %v, timer %v, %d statements under way", time.Since(began), d.timer, d.flying)
			}
		}
		if n := d.store.pool.Stat().AcquireCount(); n != 0 {
			t.Errorf("%d connections were taken", n)
		}
	})
}

// As many statements as the lane is wide go at once; the calls that come meanwhile go together when the first of them has
// ended, in the order in which they came, and each has its own answer.
func TestCallsThatComeMeanwhileGoTogetherInTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 2)
		a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
		first, second := d.next(t, "alone a1"), d.next(t, "alone b2")
		var got []<-chan heard
		for i, name := range []string{"e", "c", "d"} {
			got = append(got, d.call(t.Context(), order{name: name, n: 10 + i}))
		}
		d.quiet(t)
		second.answer()
		must(t, b, 2)
		together := d.next(t, "many e10 c11 d12")
		d.quiet(t)
		together.answer()
		for i, g := range got {
			must(t, g, 10+i)
		}
		first.answer()
		must(t, a, 1)
	})
}

// One call that waits goes alone, with its own context, when its turn comes: nothing is started for it.
func TestOneCallThatWaitedGoesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		a := d.call(t.Context(), order{name: "a", n: 1})
		b := d.call(t.Context(), order{name: "b", n: 2})
		d.next(t, "alone a1").answer()
		must(t, a, 1)
		s := d.next(t, "alone b2")
		if s.ctx != t.Context() {
			t.Error("the call was sent with another context than its own")
		}
		c := d.call(t.Context(), order{name: "c", n: 3}) // the place of the first is now b's
		d.quiet(t)
		s.answer()
		must(t, b, 2)
		d.next(t, "alone c3").answer()
		must(t, c, 3)
		if n := d.store.pool.Stat().AcquireCount(); n != 0 {
			t.Errorf("%d connections were taken", n)
		}
	})
}

// Calls for one lock are sent in the order in which they came, and no statement has a name twice.
func TestOrderWithinOneLockIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		var got []<-chan heard
		for i, name := range []string{"first", "x", "a", "x", "x", "b", "x"} {
			got = append(got, d.call(t.Context(), order{name: name, n: i}))
		}
		for _, want := range []string{"alone first0", "many x1 a2 b5", "alone x3", "alone x4", "alone x6"} {
			s := d.next(t, want)
			d.quiet(t)
			if want == "many x1 a2 b5" { // so that the next does not wait for as many again
				d.mu.Lock()
				d.last = 1
				d.mu.Unlock()
			}
			s.answer()
		}
		for i, g := range got {
			must(t, g, i)
		}
	})
}

// Calls that do not fit the first in line go in the next statement, and so nobody is passed over twice.
func TestCallsThatDoNotFitGoInTheNextStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		var got []<-chan heard
		for i, o := range []order{{name: "first"}, {name: "a", kind: "long"}, {name: "b", kind: "short"}, {name: "c", kind: "long"}, {name: "d", kind: "short"}} {
			o.n = i
			got = append(got, d.call(t.Context(), o))
		}
		for _, want := range []string{"alone first0", "many a1 c3", "many b2 d4"} {
			d.next(t, want).answer()
		}
		for i, g := range got {
			must(t, g, i)
		}
	})
}

// A statement carries batchMost calls at most; the others go in the next, and none is forgotten.
func TestStatementCarriesNoMoreThanTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		const calls = 2*batchMost - 10
		var got []<-chan heard
		for i := range 1 + calls {
			got = append(got, d.call(t.Context(), order{name: fmt.Sprint("lock", i, "-"), n: i}))
		}
		for _, want := range []int{1, batchMost, calls - batchMost} {
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
			must(t, g, i)
		}
	})
}

// A statement that the server refuses is asked again in parts until those that it refuses are alone: they hear their own
// refusal, the others are answered, and no call is answered twice.
func TestRefusedCallFailsAloneWithItsOwnError(t *testing.T) {
	for _, code := range []string{"23514", "40P01", "55P03", "57014"} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(t, 1)
				const calls = 16
				bad := []int{3, 4, 11}
				first := d.call(t.Context(), order{name: "first"})
				got := make([]<-chan heard, calls)
				for i := range got {
					got[i] = d.call(t.Context(), order{name: fmt.Sprint("lock", i, "-"), n: i})
				}
				d.next(t, "alone first0").answer()
				must(t, first, 0)
				answered := make(map[int]int)
				sent := 0
				for synctest.Wait(); len(d.sent) > 0; synctest.Wait() {
					s := <-d.sent
					sent++
					if i := slices.IndexFunc(s.orders, func(o order) bool { return slices.Contains(bad, o.n) }); i >= 0 {
						if s.how == "after" { // alone, it is told by itself
							s.fail(fmt.Errorf("refused %d", s.orders[i].n))
							continue
						}
						s.fail(refusal(code))
						continue
					}
					for _, o := range s.orders {
						answered[o.n]++
					}
					s.answer()
				}
				for i, g := range got {
					if !slices.Contains(bad, i) {
						must(t, g, i)
						if answered[i] != 1 {
							t.Errorf("call %d was answered %d times", i, answered[i])
						}
						continue
					}
					if h := back(t, g); h.err == nil || h.err.Error() != fmt.Sprint("refused ", i) {
						t.Errorf("call %d: %+v, want its own refusal", i, h)
					}
				}
				if most := 2*len(bad)*4 + 1 + len(bad); sent > most { // a path of halves to each, and what it is told
					t.Errorf("%d statements for %d refused of %d calls, want %d at most", sent, len(bad), calls, most)
				}
			})
		})
	}
}

// When the connection ends, what became of the statement is not known: every call hears that, and nothing is sent again here.
func TestLostConnectionIsToldToAllAndNothingIsSentAgain(t *testing.T) {
	for what, lost := range map[string]error{"reset": errors.New("connection reset"), "terminated": refusal("57P01"), "unconfirmed": errUnconfirmed} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(t, 1)
				first := d.call(t.Context(), order{name: "first"})
				a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
				d.next(t, "alone first0").answer()
				must(t, first, 0)
				d.next(t, "many a1 b2").fail(lost)
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

// What a statement for many does not answer for is asked for alone.
func TestCallThatIsNotAnsweredWithManyGoesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		first := d.call(t.Context(), order{name: "first"})
		a, b, c := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2}), d.call(t.Context(), order{name: "c", n: 3})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		d.next(t, "many a1 b2 c3").answer("b")
		must(t, a, 1)
		must(t, c, 3)
		s := d.next(t, "after b2")
		if s.ctx != t.Context() {
			t.Error("the call was sent with another context than its own")
		}
		s.answer()
		must(t, b, 2)
	})
}

// Calls whose context ends before they are sent come back at once, are not sent, and say so.
func TestCallThatGivesUpBeforeItIsSentIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		a, b, c, e := d.call(t.Context(), order{name: "a", n: 1}), d.call(ctx, order{name: "b", n: 2}), d.call(t.Context(), order{name: "c", n: 3}), d.call(ctx, order{name: "e", n: 4})
		cancel()
		for _, g := range []<-chan heard{b, e} {
			if h := back(t, g); !errors.Is(h.err, context.Canceled) || !neverSent(h.err) {
				t.Errorf("%+v, want a cancelled call that was never sent", h)
			}
		}
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		d.next(t, "many a1 c3").answer()
		must(t, a, 1)
		must(t, c, 3)
	})
}

// Calls whose context ends while their statement is under way come back at once, and do not say that they were never sent;
// the statement goes on for the others.
func TestCallThatGivesUpUnderWayLeavesTheOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		a, b, c := d.call(t.Context(), order{name: "a", n: 1}), d.call(ctx, order{name: "b", n: 2}), d.call(t.Context(), order{name: "c", n: 3})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		s := d.next(t, "many a1 b2 c3")
		cancel(gone)
		if h := back(t, b); !errors.Is(h.err, context.Canceled) || neverSent(h.err) {
			t.Errorf("%+v, want a cancelled call that may have been sent", h)
		}
		if s.ctx.Err() != nil {
			t.Error("the statement was ended for the others too")
		}
		s.answer()
		must(t, a, 1)
		must(t, c, 3)
	})
}

// A refused statement is asked again without those that have given up.
func TestCallThatHasGivenUpIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		var got []<-chan heard
		for i, c := range []context.Context{ctx, t.Context(), ctx, ctx} {
			got = append(got, d.call(c, order{name: "abcd"[i : i+1], n: i}))
		}
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		s := d.next(t, "many a0 b1 c2 d3")
		cancel()
		synctest.Wait()
		s.fail(refusal("40P01"))
		d.next(t, "many b1").answer()
		d.quiet(t)
		must(t, got[1], 1)
	})
}

// A statement ends when the last of its calls has given up, and its place is free.
func TestStatementEndsWhenAllItsCallsHaveGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		late, cancelLate := context.WithCancel(t.Context())
		first := d.call(t.Context(), order{name: "first"})
		a, b := d.call(ctx, order{name: "a", n: 1}), d.call(late, order{name: "b", n: 2})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		s := d.next(t, "many a1 b2")
		cancel()
		back(t, a)
		if s.ctx.Err() != nil {
			t.Fatal("the statement was ended while a call waits for it")
		}
		cancelLate()
		back(t, b)
		if s.ctx.Err() == nil {
			t.Error("the statement goes on although nobody waits for it")
		}
		if d.flying != 0 {
			t.Errorf("%d statements under way", d.flying)
		}
	})
}

// A statement that hangs holds up others for the bound, and no longer; when it comes back after all, the lane is no wider
// than before.
func TestHangingStatementHoldsUpOthersForTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		hung := d.call(t.Context(), order{name: "hung", n: 1})
		s := d.next(t, "alone hung1")
		a := d.call(t.Context(), order{name: "a", n: 2})
		time.Sleep(stalled / 2)
		b := d.call(t.Context(), order{name: "b", n: 3})
		time.Sleep(stalled/2 - 1)
		d.quiet(t)
		time.Sleep(time.Nanosecond)
		together := d.next(t, "many a2 b3")
		s.answer() // it comes back while its place is taken
		must(t, hung, 1)
		if d.flying != 1 {
			t.Fatalf("%d statements under way, want the one", d.flying)
		}
		c := d.call(t.Context(), order{name: "c", n: 4})
		e := d.call(t.Context(), order{name: "e", n: 5})
		d.quiet(t)
		together.answer()
		must(t, a, 2)
		must(t, b, 3)
		d.next(t, "many c4 e5").answer()
		must(t, c, 4)
		must(t, e, 5)
		if d.flying != 0 {
			t.Errorf("%d statements under way", d.flying)
		}
	})
}

// A statement for several that hangs holds up others for the bound too.
func TestHangingStatementForManyHoldsUpOthersForTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		first := d.call(t.Context(), order{name: "first"})
		a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		hung := d.next(t, "many a1 b2")
		c, e := d.call(t.Context(), order{name: "c", n: 3}), d.call(t.Context(), order{name: "e", n: 4})
		d.quiet(t)
		time.Sleep(stalled)
		d.next(t, "many c3 e4").answer()
		must(t, c, 3)
		must(t, e, 4)
		hung.answer()
		must(t, a, 1)
		must(t, b, 2)
	})
}

// starve takes every connection of the pool.
func (d *depot) starve(t *testing.T) (feed func()) {
	t.Helper()
	var conns []*pgxpool.Conn
	for range d.store.pool.Config().MaxConns {
		conn, err := d.store.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
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
		first := d.call(t.Context(), order{name: "first"})
		feed := d.starve(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, b, c := d.call(ctx, order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2}), d.call(t.Context(), order{name: "c", n: 3})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
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
		d.next(t, "many b2 c3").answer()
		must(t, b, 2)
		must(t, c, 3)
	})
}

// However long there is no connection, as many goroutines wait for one as the lane is wide, and none when no call waits any
// more: a lane is closed at once then.
func TestCallsWithoutAConnectionLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		first := d.call(t.Context(), order{name: "first"})
		d.starve(t)
		ctx, cancel := context.WithCancel(t.Context())
		a, b := d.call(ctx, order{name: "a", n: 1}), d.call(ctx, order{name: "b", n: 2})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		time.Sleep(5 * time.Second)
		stacks := make([]byte, 1<<22)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if n := bytes.Count(stacks, []byte(".fly(")); n > d.width {
			t.Errorf("%d goroutines wait for a connection, want %d at most", n, d.width)
		}
		cancel()
		back(t, a)
		back(t, b)
		began := time.Now()
		d.close()
		if took := time.Since(began); took > 0 {
			t.Errorf("close took %v although nobody waits", took)
		}
	})
}

// A statement may get its connection in the moment in which the last call that waited for it gives up. Calls that come then
// travel in it, and do not end with that one.
func TestCallsThatComeWhenTheLastOneHasLeftGoOn(t *testing.T) {
	d := newDepot(t, 1)
	d.many = func(ctx context.Context, _ *pgx.Conn, orders []order) (map[int]int, error) {
		answers := make(map[int]int)
		for i, o := range orders {
			answers[i] = o.n
		}
		return answers, ctx.Err()
	}
	d.alone = func(ctx context.Context, o order) (int, error) { return o.n, ctx.Err() }
	for round := range 200 {
		feed := d.starve(t)
		d.mu.Lock()
		d.last = 2 // the lane is busy: also the first call waits for a statement for several
		d.mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = d.do(ctx, order{name: "first"}) })
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
				if a, err := d.do(context.Background(), order{name: fmt.Sprint("late", n), n: n}); err != nil || a != n {
					t.Errorf("call %d of round %d: %d, %v", n, round, a, err)
				}
			})
		}
		if calls.Wait(); t.Failed() {
			return
		}
	}
}

// close returns when the statements that nobody waits for any more have ended.
func TestClosedLaneHasNothingUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, 1)
		first := d.call(t.Context(), order{name: "first"})
		a, b := d.call(t.Context(), order{name: "a", n: 1}), d.call(t.Context(), order{name: "b", n: 2})
		d.next(t, "alone first0").answer()
		must(t, first, 0)
		s := d.next(t, "many a1 b2")
		closed := make(chan struct{})
		go func() { d.close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while a statement was under way")
		default:
		}
		s.answer()
		must(t, a, 1)
		must(t, b, 2)
		<-closed
	})
}

// Calls of many goroutines, some of which give up, are refused, not answered with others, or lose their connection: each gets
// its own answer or its own error, and nothing is left behind.
func TestEveryCallGetsItsOwnAnswer(t *testing.T) {
	lost := errors.New("lost")
	for width := 1; width <= 3; width++ {
		d := newDepot(t, width)
		var under, most int
		var mu sync.Mutex
		answer := func(ctx context.Context, orders []order) (map[int]int, error) {
			mu.Lock()
			under++
			most = max(most, len(orders))
			mu.Unlock()
			defer func() { mu.Lock(); under--; mu.Unlock() }()
			for range rand.N(50) {
				runtime.Gosched()
			}
			answers := make(map[int]int)
			names := make(map[string]bool)
			for i, o := range orders {
				if names[o.name] {
					t.Errorf("%q is twice in a statement", o.name)
				}
				names[o.name] = true
				if o.kind == "refused" {
					return nil, refusal("22023")
				}
				if len(orders) == 1 || rand.N(8) > 0 {
					answers[i] = o.n
				}
			}
			if rand.N(50) == 0 {
				return nil, lost
			}
			return answers, ctx.Err()
		}
		one := func(ctx context.Context, o order) (int, error) {
			answers, err := answer(ctx, []order{o})
			return answers[0], err
		}
		d.alone, d.after = one, one
		d.many = func(ctx context.Context, _ *pgx.Conn, orders []order) (map[int]int, error) {
			return answer(ctx, orders)
		}
		d.fits = func(order, order) bool { return true }
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
					a, err := d.do(ctx, o)
					switch {
					case err == nil && a == o.n && o.kind == "":
					case errors.Is(err, lost):
					case sqlState(err) == "22023" && o.kind == "refused":
					case errors.Is(err, context.Canceled) && ctx.Err() != nil:
					default:
						t.Errorf("%+v: %d, %v", o, a, err)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		d.close()
		if d.flying != 0 || len(d.waiting) != 0 || under != 0 {
			t.Errorf("%d flying, %d waiting, %d statements under way", d.flying, len(d.waiting), under)
		}
		if most < 2 {
			t.Error("no two calls went together")
		}
	}
}
