package lending

import (
	"context"
	"slices"
)

// own is the loan of a connection that was taken.
func (l *Lender[C]) own(conn C) Loan[C] { return Loan[C]{conn, true, func() { l.put(conn) }} }

// mayComeBack reports whether a connection of one's own is in use.
func (l *Lender[C]) mayComeBack() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lent) > 0
}

// Has reports whether a connection of one's own is open, in use or not.
func (l *Lender[C]) Has() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spare != nil || len(l.lent) > 0
}

// take takes the connection of one's own that nobody uses.
func (l *Lender[C]) take() (conn C, open bool) {
	l.mu.Lock()
	s := l.lend()
	l.mu.Unlock()
	return l.taken(s)
}

// lend makes the spare connection a lent one. The mutex is held.
func (l *Lender[C]) lend() (s *spare[C]) {
	if s, l.spare = l.spare, nil; s != nil {
		l.lent[s.conn] = struct{}{}
	}
	return s
}

// taken ends what goes on over a spare connection. False: there is none, or it was lost.
func (l *Lender[C]) taken(s *spare[C]) (conn C, open bool) {
	if s == nil {
		return conn, false
	}
	if s.end(); !l.Usable(s.conn) {
		l.put(s.conn)
		return conn, false
	}
	return s.conn, true
}

// InUse reports whether this connection is lent.
func (l *Lender[C]) InUse(conn C) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, lent := l.lent[conn]
	return lent
}

// Claim lends this connection, which was lent before, as soon as nobody uses it. It fails with ErrGone if that was
// closed.
func (l *Lender[C]) Claim(ctx context.Context, conn C) (Loan[C], error) {
	l.mu.Lock()
	if l.spare != nil && l.spare.conn == conn {
		s := l.lend()
		l.mu.Unlock()
		if _, open := l.taken(s); !open {
			return Loan[C]{}, ErrGone
		}
		return l.own(conn), nil
	}
	if _, lent := l.lent[conn]; !lent {
		l.mu.Unlock()
		return Loan[C]{}, ErrGone
	}
	got := make(chan C, 1)
	l.queue(waiter[C]{only: conn, got: got})
	l.mu.Unlock()
	defer l.unwant(got)
	select {
	case conn, open := <-got:
		if !open {
			return Loan[C]{}, ErrGone
		}
		return l.own(conn), nil
	case <-ctx.Done():
		return Loan[C]{}, ctx.Err()
	}
}

// queue adds somebody who waits. What keeps leases does not wait behind callers, of whom there may be many: the server
// may be full, and this the only connection. The mutex is held.
func (l *Lender[C]) queue(w waiter[C]) {
	at := slices.IndexFunc(l.waiting, func(other waiter[C]) bool { return other.many && !w.many })
	if at < 0 {
		at = len(l.waiting)
	}
	l.waiting = slices.Insert(l.waiting, at, w)
}

// want hands the next connection of one's own to who waits longest, also the spare one if that will do.
func (l *Lender[C]) want(own chan C, order Order) {
	for {
		var s *spare[C]
		l.mu.Lock()
		if order != Fresh {
			s = l.lend()
		}
		if s == nil {
			l.queue(waiter[C]{got: own, many: order.many()})
		}
		l.mu.Unlock()
		if s == nil {
			return
		}
		if conn, open := l.taken(s); open {
			own <- conn
			return
		}
	}
}

func (l *Lender[C]) unwant(got chan C) {
	l.mu.Lock()
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter[C]) bool { return w.got == got })
	l.mu.Unlock()
	select {
	case conn, open := <-got: // it came at that moment
		if open {
			l.put(conn)
		}
	default:
	}
}

// put passes a connection of one's own to who waits for one, keeps it, or closes it.
func (l *Lender[C]) put(conn C) {
	l.mu.Lock()
	surplus := l.pass(conn)
	l.mu.Unlock()
	l.hang(surplus)
}

// pass passes on or keeps a connection, and returns the one that there is no use for. The mutex is held.
func (l *Lender[C]) pass(conn C) (surplus *spare[C]) {
	delete(l.lent, conn)
	usable := !l.closed && l.Usable(conn)
	next := slices.IndexFunc(l.waiting, func(w waiter[C]) bool { return w.only == conn || w.only == *new(C) })
	switch {
	case usable && next >= 0:
		l.waiting[next].got <- conn
		l.waiting = slices.Delete(l.waiting, next, next+1)
		l.lent[conn] = struct{}{}
		return nil
	case usable && (l.spare == nil && l.keeps || conn == l.listens):
		surplus, l.spare = l.spare, &spare[C]{conn, l.Attend(conn)}
		return surplus
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter[C]) bool {
		gone := w.only == conn
		if gone {
			close(w.got)
		}
		return gone
	})
	return &spare[C]{conn, func() {}}
}

// hang closes a connection that there is no use for.
func (l *Lender[C]) hang(s *spare[C]) {
	if s != nil {
		s.end()
		l.Hang(s.conn)
	}
}

// Keep makes a connection of one's own stay open from now on when it is given back, until Rest.
func (l *Lender[C]) Keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps = true
}

// Rest ends Keep.
func (l *Lender[C]) Rest() { l.end(func() { l.keeps = false }) }

// Listen makes this connection stay open, rather than another, until Deafen.
func (l *Lender[C]) Listen(conn C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listens = conn
}

// Listens reports whether one of one's own listens.
func (l *Lender[C]) Listens() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listens != *new(C)
}

// Deafen ends Listen.
func (l *Lender[C]) Deafen() { l.end(func() { l.listens = *new(C) }) }

// end ends a reason to keep the spare connection, and closes that if there is no other.
func (l *Lender[C]) end(change func()) {
	l.mu.Lock()
	change()
	var surplus *spare[C]
	if s := l.spare; s != nil && (l.closed || !l.keeps && s.conn != l.listens) {
		surplus, l.spare = s, nil
	}
	l.mu.Unlock()
	l.hang(surplus)
}

// Close rests, and returns when every dial has ended. Nobody lends any more, and Life has ended.
func (l *Lender[C]) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.tasks.Wait()
	l.Rest()
}
