package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// patience bounds every wait for something that happens at once unless the code is broken.
const patience = 10 * time.Second

// message makes one with a type.
func message(kind byte, parts ...string) []byte {
	m := []byte{kind, 0, 0, 0, 0}
	for _, p := range parts {
		m = append(append(m, p...), 0)
	}
	binary.BigEndian.PutUint32(m[1:], uint32(len(m)-1))
	return m
}

// startup is the first message of a client.
func startup() []byte {
	m := binary.BigEndian.AppendUint32(nil, 8)
	return binary.BigEndian.AppendUint32(m, 196608)
}

// ends are both ends of a connection over a line: what is written at one is read at the other, if the line lets it.
type ends struct {
	t              *testing.T
	line           *Line
	client, server net.Conn
	atClient       *reader
	atServer       *reader
}

func connect(t *testing.T) *ends {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = server.Close() })
	line, err := Listen(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	e := &ends{t: t, line: line}
	t.Cleanup(func() {
		must.Note(t, line.Close())
	})
	if e.client, err = net.Dial("tcp", line.Address()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.client.Close() })
	if e.server, err = server.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.server.Close() })
	e.atClient, e.atServer = &reader{Reader: bufio.NewReader(e.client)}, &reader{Reader: bufio.NewReader(e.server),
		untyped: true}
	e.send(e.client, startup())
	e.receive(e.atServer, "\x00")
	return e
}

func (e *ends) send(at net.Conn, messages ...[]byte) {
	e.t.Helper()
	for _, m := range messages {
		must.Get(at.Write(m))(e.t)
	}
}

// receive expects messages of these types.
func (e *ends) receive(at *reader, kinds string) {
	e.t.Helper()
	_ = e.client.SetReadDeadline(time.Now().Add(patience))
	_ = e.server.SetReadDeadline(time.Now().Add(patience))
	for i := range kinds {
		m, err := at.next()
		if err != nil || m[0] != kinds[i] {
			e.t.Fatalf("message %q, %v, want %q", m, err, kinds[i])
		}
	}
}

// nothing expects that nothing comes for a moment.
func (e *ends) nothing(conn net.Conn, at *reader) {
	e.t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if m, err := at.next(); !errors.Is(err, errTimeout(err)) {
		e.t.Fatalf("message %q, %v, want nothing", m, err)
	}
}

// errTimeout is err if it is a deadline that has passed.
func errTimeout(err error) error {
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		return err
	}
	return errors.New("a deadline that has passed")
}

// over expects the end of the connection.
func (e *ends) over(conn net.Conn) {
	e.t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, errTimeout(err)) {
		e.t.Fatal("the connection is still there")
	}
}

func always() bool { return true }

// commit is what a client sends for a COMMIT that it has prepared, in a pipeline with what comes before.
func commit() [][]byte {
	return [][]byte{message('P', "s1", "SELECT pglock.seal()"), message('B', "", "s1"), message('E', ""),
		message('P', "s2", "COMMIT"), message('B', "", "s2"),
		message('E', ""), message('S')}
}

func TestMessagesPassInBothDirections(t *testing.T) {
	e := connect(t)
	e.send(e.client, commit()...)
	e.receive(e.atServer, "PBEPBES")
	e.send(e.server, message('C', "SELECT 1"), message('C', "COMMIT"), message('Z', "I"))
	e.receive(e.atClient, "CCZ")
}

func TestRequestOfCommitIsLost(t *testing.T) {
	e := connect(t)
	e.line.OnCommit(CommitFault{Direction: Up, Drop: true, By: 100 * time.Millisecond, Chance: always})
	e.send(e.client, commit()...)
	e.receive(e.atServer, "PBEPB")
	e.over(e.client)
	e.over(e.server)
}

func TestAnswerOfCommitIsLost(t *testing.T) {
	e := connect(t)
	stop := e.line.OnCommit(CommitFault{Direction: Down, Drop: true, By: 100 * time.Millisecond, Chance: always})
	e.send(e.client, message('Q', "commit"))
	e.receive(e.atServer, "Q")
	e.send(e.server, message('C', "SELECT 1"), message('C', "COMMIT"), message('Z', "I"))
	e.receive(e.atClient, "C")
	e.over(e.client)
	e.over(e.server)
	if n := stop(); n != 1 {
		t.Errorf("%d commits were concerned", n)
	}
}

func TestRequestOfCommitIsLate(t *testing.T) {
	e := connect(t)
	const late = 200 * time.Millisecond
	e.line.OnCommit(CommitFault{Direction: Up, By: late, Chance: always})
	began := time.Now()
	e.send(e.client, commit()...)
	e.receive(e.atServer, "PBEPB")
	e.receive(e.atServer, "ES")
	if took := time.Since(began); took < late {
		t.Errorf("COMMIT came after %v", took)
	}
}

// A client that has gone does not take back what it has sent.
func TestWhatWasSentIsDeliveredWhenTheClientHasGone(t *testing.T) {
	e := connect(t)
	e.line.OnCommit(CommitFault{Direction: Up, By: 100 * time.Millisecond, Chance: always})
	e.send(e.client, message('Q', "COMMIT"))
	_ = e.client.Close()
	e.receive(e.atServer, "Q")
	e.over(e.server)
}

func TestNotificationsAloneAreHeldBack(t *testing.T) {
	e := connect(t)
	release := e.line.HoldHints()
	e.send(e.server, message('A', "pid", "channel"), message('Z', "I"))
	e.receive(e.atClient, "Z") // which was sent after it
	e.nothing(e.client, e.atClient)
	release()
	e.receive(e.atClient, "A")
}

func TestMessagesOfOneDirectionAreHeldBack(t *testing.T) {
	e := connect(t)
	release := e.line.Hold(Up, true)
	e.send(e.client, message('Q', "SELECT 1"), message('Q', "SELECT 2"))
	e.send(e.server, message('Z', "I"))
	e.receive(e.atClient, "Z")
	e.nothing(e.server, e.atServer)
	release()
	e.receive(e.atServer, "QQ")
}

func TestNotificationsMayBeSpared(t *testing.T) {
	for _, spared := range []bool{true, false} {
		t.Run(strconv.FormatBool(spared), func(t *testing.T) {
			e := connect(t)
			release := e.line.Hold(Down, !spared)
			defer release()
			e.send(e.server, message('A', "pid", "channel"))
			if !spared {
				e.nothing(e.client, e.atClient)
				release()
			}
			e.receive(e.atClient, "A")
		})
	}
}

func TestConnectionsAreRefusedForAWhile(t *testing.T) {
	e := connect(t)
	restore := e.line.Refuse()
	if n := e.line.Cut(true); n != 1 {
		t.Errorf("%d connections were cut", n)
	}
	e.over(e.client)
	if c, err := net.DialTimeout("tcp", e.line.Address(), time.Second); err == nil {
		_ = c.Close()
		t.Error("a connection was taken while they are refused")
	}
	must.Do(t, restore())
	_ = must.Get(net.DialTimeout("tcp", e.line.Address(), time.Second))(t).Close()
}

func TestCommitsAreKnownInEveryWayToSayIt(t *testing.T) {
	s := newSpoken()
	for _, c := range []struct {
		message []byte
		commits bool
	}{
		{message('Q', "commit"), true},
		{message('Q', `SELECT "pglock".seal(); COMMIT`), true},
		{message('Q', "COMMIT;\n"), true},
		{message('Q', "SELECT 'commit', 1"), false},
		{message('P', "", "COMMIT"), false},
		{message('B', "", ""), false},
		{message('E', ""), true},
		{message('P', "", "SELECT 1"), false},
		{message('B', "", ""), false},
		{message('E', ""), false},
	} {
		if commits := s.request(c.message); commits != c.commits {
			t.Errorf("%q commits: %v", c.message, commits)
		}
	}
}
