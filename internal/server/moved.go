package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// silentFor is how long a statement is waited for before the client asks whether the leader is another server by now.
// A leader that has gone in silence would hold the statement for its whole time. Each time that the server was only
// slow the next statement is waited for twice as long, at most slowest times, until one is answered sooner: an
// overloaded server is not asked for more and more connections. When the pool was silent once, its next idle connection
// has only silentNext.
const (
	silentFor  = time.Second
	slowest    = 3
	silentNext = 100 * time.Millisecond
)

// errMoved: the connection was closed, because it was silent and another server leads.
var errMoved = errors.New("the server was silent, and another leads now")

// watch looks for another leader while a statement has no answer, and closes its connection if there is one. answered
// ends that. A server that is only slow is left alone: an own connection still leads to it, and it has the statement's
// process.
func (s *Server) watch(ctx context.Context, conn *pgx.Conn) (answered func(error) error) {
	if s.several && !s.follows || !s.several && !s.unpooled.Load() {
		return func(err error) error { return err }
	}
	left := whileSilent(ctx, silentFor<<s.slow.Load(), func(ctx context.Context) bool {
		return s.leadsElsewhere(ctx, conn)
	}, func() { _ = conn.PgConn().Conn().Close() })
	return func(err error) error {
		switch silent, moved := left(); {
		case moved && err != nil:
			return fmt.Errorf("%w: %w", errMoved, err)
		case !silent:
			s.slow.Store(0)
		}
		return err
	}
}

// whileSilent looks whether there is something better when what ctx is for has taken a while, and then leaves it.
// ended ends that, and says whether it has looked and left.
func whileSilent(
	ctx context.Context, after time.Duration, look func(context.Context) bool, leave func(),
) (ended func() (looked, left bool)) {
	ctx, cancel := context.WithCancel(ctx)
	left, done := false, make(chan struct{})
	timer := time.AfterFunc(after, func() {
		defer close(done)
		if left = look(ctx); left {
			leave()
		}
	})
	return func() (bool, bool) {
		cancel()
		if timer.Stop() {
			return false, false
		}
		<-done
		return true, left
	}
}

// borrow takes a connection of the pool. The pool asks an idle one whether it works, and waits for a silent one for as
// long as TCP does. So one that does not come, while an own connection answers, is left to the pool for another.
func (s *Server) borrow(ctx context.Context) (conn *pgx.Conn, give func(), err error) {
	answers := func(ctx context.Context) bool { return s.ask(ctx, func(*pgx.Conn, bool) {}, 0) == nil }
	for after := silentFor << s.slow.Load(); s.pool.Stat().IdleConns() > 0; {
		asking, cancel := context.WithCancel(ctx)
		left := whileSilent(asking, after, answers, cancel)
		conn, give, err = borrow(asking, s.pool)
		_, silent := left()
		cancel()
		if err == nil || !silent || ctx.Err() != nil {
			return conn, give, err
		}
		after = silentNext
	}
	return borrow(ctx, s.pool)
}

// leadsElsewhere reports whether an own connection leads to another server than a silent one. Behind one address that
// is one without the process of the silent connection; behind a pooler nobody knows that process.
func (s *Server) leadsElsewhere(ctx context.Context, silent *pgx.Conn) (moved bool) {
	was := silent.Config()
	err := s.ask(ctx, func(own *pgx.Conn, serves bool) {
		at := own.Config()
		moved = address(at.Host, at.Port) != address(was.Host, was.Port) || s.unpooled.Load() && !serves
	}, silent.PgConn().PID())
	if err == nil && !moved {
		s.slow.Store(min(s.slow.Load()+1, slowest))
	}
	return moved
}

// ask asks over an own connection whether the server has a process.
func (s *Server) ask(ctx context.Context, answer func(own *pgx.Conn, serves bool), pid uint32) error {
	return s.lent(ctx, protocol.Patience, lending.Own, func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
		serves := true
		err := s.executor.Run(ctx, loan.Conn, s.Queries.Serves(pid, &serves))
		if err == nil {
			answer(loan.Conn, serves)
		}
		return err
	})
}
