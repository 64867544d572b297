package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through a line.
type link struct {
	line     *Line
	client   *net.TCPConn
	upstream string
	ctx      context.Context // ends when the link is cut
	cancel   context.CancelFunc

	mu     sync.Mutex
	server *net.TCPConn // nil until it is reached
	reset  bool

	hints chan []byte // notifications that are held back
}

const dialing = 5 * time.Second

func newLink(l *Line, client *net.TCPConn, upstream string) *link {
	k := &link{line: l, client: client, upstream: upstream, hints: make(chan []byte, 10_000)}
	k.ctx, k.cancel = context.WithCancel(l.ctx)
	return k
}

// cut ends the link; run then cleans up.
func (k *link) cut(reset bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reset = k.reset || reset
	k.cancel()
	k.shut()
}

// shut closes both ends. The mutex is held.
func (k *link) shut() {
	for _, conn := range []*net.TCPConn{k.client, k.server} {
		if conn != nil {
			if k.reset {
				_ = conn.SetLinger(0)
			}
			_ = conn.Close()
		}
	}
}

// run carries messages until both sides have said their last.
func (k *link) run() {
	defer func() {
		k.mu.Lock()
		k.shut()
		k.mu.Unlock()
		k.cancel()
		k.line.mu.Lock()
		delete(k.line.links, k)
		k.line.mu.Unlock()
	}()
	dialer := net.Dialer{Timeout: dialing}
	conn, err := dialer.DialContext(k.ctx, "tcp", k.upstream)
	if err != nil {
		k.mu.Lock()
		k.reset = true
		k.mu.Unlock()
		return
	}
	k.mu.Lock()
	k.server = conn.(*net.TCPConn)
	if k.ctx.Err() != nil {
		k.shut()
	}
	k.mu.Unlock()

	up, down := &outlet{conn: k.server}, &outlet{conn: k.client}
	var pumps, ears sync.WaitGroup
	pumps.Go(func() { k.pump(Up, k.client, up) })
	pumps.Go(func() { k.pump(Down, k.server, down) })
	hearing, deaf := context.WithCancel(k.ctx)
	ears.Go(func() { k.carryHints(hearing, down) })
	pumps.Wait()
	deaf()
	ears.Wait()
}

// pump carries the messages of one direction. What the sender said before it closed its end is still delivered, as a
// network does.
func (k *link) pump(d Direction, from *net.TCPConn, to *outlet) {
	defer func() {
		_ = to.flush()
		_ = to.conn.CloseWrite()
	}()
	in := &reader{Reader: bufio.NewReaderSize(from, 32<<10), untyped: d == Up}
	spoken := newSpoken()
	for {
		m, err := in.next()
		if err != nil {
			return
		}
		if d == Down && m[0] == 'A' {
			select {
			case k.hints <- append([]byte(nil), m...):
			default: // so many that nobody misses one
			}
			continue
		}
		if !k.passGate(d, to) {
			return
		}
		commit := false
		if d == Up {
			commit = spoken.request(m)
		} else {
			commit = isCommitted(m)
		}
		if commit {
			if fault, concerned := k.line.concerned(d); concerned {
				_ = to.flush()
				if fault.Drop {
					k.lose(from, fault.By)
					return
				}
				if !k.pause(fault.By) {
					return
				}
			}
		}
		to.put(m)
		if in.Buffered() == 0 {
			if to.flush() != nil {
				k.cut(false)
				return
			}
		}
	}
}

// passGate waits while messages are held back. False says that the link was cut meanwhile.
func (k *link) passGate(d Direction, to *outlet) bool {
	for {
		rules, changed := k.line.now()
		if rules.held[d] == 0 {
			return true
		}
		_ = to.flush()
		select {
		case <-changed:
		case <-k.ctx.Done():
			return false
		}
	}
}

// lose swallows what comes from now on, and resets the connection after a while, or when its sender has gone.
func (k *link) lose(from *net.TCPConn, after time.Duration) {
	timer := time.AfterFunc(after, func() { k.cut(true) })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, from)
	k.cut(true)
}

func (k *link) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-k.ctx.Done():
		return false
	}
}

// carryHints delivers notifications, which may be held back while everything else goes on.
func (k *link) carryHints(ctx context.Context, to *outlet) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-k.hints:
			for rules, changed := k.line.now(); rules.hints > 0; rules, changed = k.line.now() {
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
			to.put(m)
			_ = to.flush()
		}
	}
}

// outlet writes whole messages; two goroutines may share it.
type outlet struct {
	conn *net.TCPConn
	mu   sync.Mutex
	kept []byte
}

func (o *outlet) put(message []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, message...)
}

func (o *outlet) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.kept) == 0 {
		return nil
	}
	_, err := o.conn.Write(o.kept)
	o.kept = o.kept[:0]
	return err
}
