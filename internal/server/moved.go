package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

const (
	// silentFor is how long an answer is waited for before the client asks the leader what it has. A leader that has
	// gone in silence would hold a statement for its whole time. So long, or longer over a slow network, the pool may
	// ask an idle connection whether it works, also when nobody waits for that any more.
	silentFor = time.Second
	// When the leader was only slow, it is asked again after twice silentFor, and so on, at most slowest times: each
	// question takes a new connection, and an overloaded server shall not be asked for more and more. After calmFor it
	// begins anew.
	slowest = 5
	calmFor = time.Minute
	// pooledNext is how long the pool may ask an idle connection whether it works when another was silent and the
	// leader was not, or longer over a slow network. Before it may for protocol.Patience.
	pooledNext = 300 * time.Millisecond
	// inARow is how many answers have to take longer than before until that is the network.
	inARow = 4
	// allowed is the most that a slow network makes of a limit. While the leader is gone each may be waited for.
	allowed = protocol.Patience / 2
)

var (
	// errMoved: the connection was closed, because it was silent and the leader does not have its process.
	errMoved = errors.New("the server was silent, and is not the leader")
	// errUnknown: this is a standby, or a pooler, or the user may not ask.
	errUnknown = errors.New("the server does not say which processes the leader has")
)

// processes lists those of this database, if the server leads. Whoever asks behind a pooler does not find its own.
const processes = `SELECT a.pid FROM pg_catalog.pg_stat_get_activity(NULL) a
	JOIN pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) me ON a.datid OPERATOR(pg_catalog.=) me.datid
	WHERE NOT pg_catalog.pg_is_in_recovery()`

// suspicion is of what waits for an answer. A server that is only slow is left alone: the leader has the process.
type suspicion struct {
	pid   uint32 // of the connection that is silent; 0: whatever the leader has, as long as it answers
	leave func()
	timer *time.Timer

	// The mutex of suspicions guards these.
	asked bool // since before the question that is under way
	over  bool // answered or left
	left  bool
}

// suspicions are of one client. At most one question is under way, for all of them.
type suspicions struct {
	mu     sync.Mutex // never held across I/O
	all    map[*suspicion]struct{}
	asking bool
	slow   int       // how often in a row the leader was only slow
	asked  time.Time // when it answered
}

// suspect begins to wait for an answer. The leader is asked when there is none for a while. over ends that, and says
// whether it was left.
func (s *Server) suspect(pid uint32, leave func()) (over func() (left bool)) {
	one := &suspicion{pid: pid, leave: leave}
	one.timer = time.AfterFunc(silentFor, func() {
		s.silent.mu.Lock()
		defer s.silent.mu.Unlock()
		if one.over || s.life.Err() != nil {
			return
		}
		s.silent.all[one] = struct{}{}
		if !s.silent.asking {
			s.silent.asking = true
			s.attempts.Go(s.askLeader)
		}
	})
	return func() bool {
		if one.timer.Stop() {
			return false
		}
		s.silent.mu.Lock()
		defer s.silent.mu.Unlock()
		one.over = true
		delete(s.silent.all, one)
		return one.left
	}
}

// askLeader asks the leader until nobody waits any more, and has those leave whom it cannot answer. Own connections
// that it does not have are closed too, so that whoever listens over one does not wait until it has something to say.
func (s *Server) askLeader() {
	for s.silent.wanted(s.life) {
		own, began := []*pgx.Conn{s.known.Load()}, time.Now()
		if h := s.listening.Load(); h != nil {
			own = append(own, h.conn)
		}
		ctx, cancel := context.WithTimeout(s.life, protocol.Patience)
		has, err := s.processes(ctx)
		cancel()
		if err != nil && !errors.Is(err, errUnknown) {
			pause.Exactly(s.life, time.Until(began.Add(silentFor)))
			continue
		}
		for _, one := range s.silent.judge(has) {
			one.leave()
		}
		for _, conn := range own {
			if has != nil && conn != nil && !has[conn.PgConn().PID()] {
				_ = conn.PgConn().Conn().Close()
			}
		}
	}
}

// wanted waits until the leader may be asked. False: nobody wants to know.
func (s *suspicions) wanted(life context.Context) bool {
	s.mu.Lock()
	if time.Since(s.asked) > calmFor {
		s.slow = 0
	}
	next := s.asked.Add(silentFor<<s.slow - silentFor)
	s.mu.Unlock()
	pause.Exactly(life, time.Until(next))
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.all {
		one.asked = true
	}
	s.asking = len(s.all) > 0 && life.Err() == nil
	return s.asking
}

// judge returns those who are to leave: the leader does not have their processes. nil: nobody knows what it has.
func (s *suspicions) judge(has map[uint32]bool) (leaving []*suspicion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := false
	for one := range s.all {
		if has != nil && one.asked && !has[one.pid] {
			one.over, one.left = true, true
			delete(s.all, one)
			leaving, moved = append(leaving, one), moved || one.pid != 0
		}
	}
	if s.slow++; moved {
		s.slow = 0
	}
	s.slow, s.asked = min(s.slow, slowest), time.Now()
	return leaving
}

// processes asks the leader for its processes, over an own connection that works.
func (s *Server) processes(ctx context.Context) (has map[uint32]bool, err error) {
	loan, err := s.lender.Lend(ctx, lending.Fresh)
	if err != nil {
		return nil, err
	}
	defer loan.Give()
	answers, err := simply(ctx, loan.Conn, processes)
	if err != nil {
		if protocol.State(err) != "" && !protocol.ConnectionLost(err) { // it may not be asked
			err = errUnknown
		}
		return nil, err
	}
	has = make(map[uint32]bool)
	for _, row := range answers[0].Rows {
		pid, err := strconv.ParseUint(string(row[0]), 10, 32)
		if err != nil {
			return nil, err
		}
		has[uint32(pid)] = true
	}
	if !has[loan.Conn.PgConn().PID()] {
		return nil, errUnknown
	}
	return has, nil
}

// watch suspects a connection while a statement has no answer, and closes it if the leader does not have its process.
// answered ends that, and tells it in the error.
func (s *Server) watch(ctx context.Context, conn *pgx.Conn) (answered func(error) error) {
	began, over := time.Now(), s.suspect(conn.PgConn().PID(), func() { _ = conn.PgConn().Conn().Close() })
	return func(err error) error {
		if !over() {
			if err == nil {
				s.pace.note(began, time.Now())
			}
			return err
		}
		closing, end := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		_ = conn.Close(closing) // also if the answer came at that moment
		end()
		if err == nil {
			return nil
		}
		return fmt.Errorf("%w: %w", errMoved, err)
	}
}

// pace is about how long an answer takes at least, over this network. A longer one may have waited for a lock or a
// standby, with all that were asked for meanwhile: only several in a row count, and of those the shortest.
type pace struct {
	mu     sync.Mutex
	about  time.Duration
	least  time.Duration // that a longer answer took, of those in a row
	longer int           // how many in a row, each asked for after the one before it
	last   time.Time     // when the last of them came
}

func (p *pace) note(asked, came time.Time) {
	took := came.Sub(asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.about == 0 || took <= p.about {
		p.about, p.longer = took, 0
		return
	}
	if p.longer == 0 || took < p.least {
		p.least = took
	}
	if p.longer > 0 && asked.Before(p.last) {
		return
	}
	if p.longer, p.last = p.longer+1, came; p.longer == inARow {
		p.about, p.longer = p.least, 0
	}
}

// allow is a limit that an answer over this network can keep, also to a statement that has to be prepared, unless it
// takes longer than is good for a failover.
func (p *pace) allow(limit time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(limit, min(3*p.about, allowed))
}

// lenient ends as its context does, but tells of no deadline before this moment. The pool lets its ping of an idle
// connection go on when the context ends, but ends it at the deadline, which closes the connection: whoever has little
// time would close one that works.
type lenient struct {
	context.Context
	until time.Time
}

func (l lenient) Deadline() (deadline time.Time, bounded bool) {
	deadline, bounded = l.Context.Deadline()
	if bounded && deadline.Before(l.until) {
		deadline = l.until
	}
	return deadline, bounded
}

// borrow takes a connection of the pool. The pool asks an idle one whether it works, and without PingTimeout it waits
// for a silent one as long as TCP does. So whoever waits although there was an idle one takes another.
func (s *Server) borrow(ctx context.Context) (conn *pgx.Conn, give func(), err error) {
	defer func() { s.refusals.failed(ctx, err) }()
	for limit := protocol.Patience; s.pool.Stat().IdleConns() > 0; {
		asking, cancel := context.WithTimeout(lenient{ctx, time.Now().Add(s.pace.allow(silentFor))}, limit)
		over := s.suspect(0, cancel)
		conn, give, err = borrow(asking, s.pool)
		left := over()
		ended := asking.Err() != nil
		cancel()
		if err == nil || !ended || ctx.Err() != nil {
			return conn, give, err
		}
		if left {
			limit = s.pace.allow(pooledNext)
		}
	}
	return borrow(ctx, s.pool)
}
