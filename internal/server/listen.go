package server

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// ears hear what the server sends by itself over an own connection, whoever uses the connection at that moment.
type ears struct {
	note   func(error)   // how a statement ended
	news   chan struct{} // 1-buffered
	told   atomic.Int64  // the server was told whose connection it is, with so many others lost before; 0: it was not
	marked atomic.Bool   // and knows it: behind a pooler it does not

	mu     sync.Mutex
	hears  bool // a listener reads what is heard; the application may listen for itself (AfterConnect)
	heard  []*pgconn.Notification
	lost   error // the connection is closed
	spoilt bool  // it works, and is to be closed
}

const earsKey = "pglock.ears"

// giveEars prepares the configuration of an own connection. Whatever the application has set there, notifications come
// to us.
func giveEars(config *pgx.ConnConfig, note func(error)) *ears {
	e := &ears{note: note, news: make(chan struct{}, 1)}
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		e.change(func() {
			if e.hears {
				e.heard = append(e.heard, n)
			}
		})
	}
	return e
}

// earsOf is for whoever has the connection: what is kept with it is for one at a time.
func earsOf(conn *pgx.Conn) *ears { return conn.PgConn().CustomData()[earsKey].(*ears) }

func (e *ears) change(f func()) {
	e.mu.Lock()
	f()
	e.mu.Unlock()
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// next returns what was heard first. What was heard before the connection was lost comes before the loss.
func (e *ears) next() (n *pgconn.Notification, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heard) == 0 {
		return nil, e.lost
	}
	n, e.heard = e.heard[0], e.heard[1:]
	return n, nil
}

// interruption is how long the end of a read may take. Some tunnels that an application dials take no deadlines: there
// it does not end, and then the connection is closed.
const interruption = time.Second

// attend waits for notifications while nobody uses an own connection.
func (s *Server) attend(conn *pgx.Conn) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.life)) // the lender ends it
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if err := conn.PgConn().WaitForNotification(ctx); err != nil {
				if e := earsOf(conn); ctx.Err() == nil {
					e.note(err)
					e.change(func() { e.lost = err })
				}
				return
			}
		}
	}()
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(interruption):
			_ = conn.PgConn().Conn().Close()
			<-ended
		}
	}
}

// Listen returns a connection that listens: the own one, or one of its own that goes directly to the server.
func (s *Server) Listen(ctx context.Context) (listener.Conn, error) {
	lender := cmp.Or(s.direct, s.lender)
	loan, err := lender.Lend(ctx, lending.Own)
	if err != nil {
		return nil, err
	}
	defer loan.Give()
	h := &hearing{s, lender, loan.Conn, earsOf(loan.Conn)}
	if s.direct == nil {
		// Behind a pooler LISTEN would apply to a connection that others use, and we would hear nothing.
		answers, err := h.simply(ctx, "select pg_catalog.pg_backend_pid()")
		if err != nil {
			return nil, err
		}
		if pid := fmt.Sprint(loan.Conn.PgConn().PID()); len(answers) != 1 || len(answers[0].Rows) != 1 ||
			string(answers[0].Rows[0][0]) != pid {
			return nil, listener.ErrPooled
		}
		s.listening.Store(h)
	}
	h.ears.change(func() { h.ears.hears = true })
	lender.Listen(loan.Conn)
	return h, nil
}

// hearing is a connection while the listener uses it, besides others.
type hearing struct {
	server *Server
	lender *lending.Lender[*pgx.Conn]
	conn   *pgx.Conn
	ears   *ears
}

func (h *hearing) Subscribe(ctx context.Context, channels ...string) error {
	return h.forAll(ctx, "LISTEN", channels)
}

func (h *hearing) Unsubscribe(ctx context.Context, channels ...string) error {
	return h.forAll(ctx, "UNLISTEN", channels)
}

// forAll sends a command for each channel in one round trip.
func (h *hearing) forAll(ctx context.Context, command string, channels []string) error {
	var sql strings.Builder
	for _, channel := range channels {
		fmt.Fprintf(&sql, "%s %s;", command, pgx.Identifier{channel}.Sanitize())
	}
	return h.exec(ctx, sql.String())
}

// Certain is so where Listen has seen whom the connection leads to.
func (h *hearing) Certain() bool { return h.server.direct == nil }

func (h *hearing) InUse() bool { return h.lender.InUse(h.conn) }

func (h *hearing) exec(ctx context.Context, sql string) error {
	loan, err := h.lender.Claim(ctx, h.conn)
	if err != nil {
		return err
	}
	defer loan.Give()
	_, err = h.simply(ctx, sql)
	return err
}

func (h *hearing) Next(ctx context.Context) (channel, payload string, err error) {
	for {
		if n, err := h.ears.next(); n != nil || err != nil {
			if err != nil {
				return "", "", err
			}
			return n.Channel, n.Payload, nil
		}
		select {
		case <-h.ears.news:
		case <-ctx.Done():
			return "", "", listener.ErrQuiet
		}
	}
}

func (h *hearing) Close(works bool) {
	if works && h.server.life.Err() == nil { // somebody may be using it, and the network may be slow
		ctx, cancel := context.WithTimeout(h.server.life, protocol.Patience)
		works = h.exec(ctx, "UNLISTEN *") == nil
		cancel()
	}
	h.ears.change(func() { h.ears.spoilt, h.ears.hears, h.ears.heard = !works, false, nil })
	if h.lender.Deafen(); works {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.server.life), goodbye)
	defer cancel()
	if loan, err := h.lender.Claim(ctx, h.conn); err == nil { // else whoever uses it does this
		loan.Give()
	}
}

func (h *hearing) simply(ctx context.Context, sql string) (answers []*pgconn.Result, err error) {
	answered := func(err error) error { return err }
	if h.lender == h.server.lender {
		answered = h.server.watch(ctx, h.conn)
	}
	answers, err = simply(ctx, h.conn, sql)
	err = answered(err)
	h.ears.note(err)
	return answers, err
}

// simply sends statements without parameters in the simple protocol, which needs no prepared statement. pgx's own way
// to do that insists on settings of the session that only parameters need.
func simply(ctx context.Context, conn *pgx.Conn, sql string) ([]*pgconn.Result, error) {
	return conn.PgConn().Exec(ctx, sql).ReadAll()
}
