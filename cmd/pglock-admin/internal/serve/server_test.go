package serve

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// A client that sends its headers slowly is cut off, and so is one whose body does not come. The http package waits for
// the body before it answers, also where nothing reads it.
func TestServeCutsOffSlowClients(t *testing.T) {
	t.Parallel()
	server := newServer(http.NotFoundHandler(), nil, notesOn(t, io.Discard))
	if server.ReadHeaderTimeout != serveHeadersIn || server.ReadTimeout != serveBodyIn || server.IdleTimeout == 0 ||
		server.MaxHeaderBytes != serveHeaders {
		t.Errorf("%+v", server)
	}
	server.ReadHeaderTimeout, server.ReadTimeout = 100*time.Millisecond, min(server.ReadTimeout, 200*time.Millisecond)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	defer func() { server.Close(); <-ended }()
	const request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	for _, begin := range []string{"GET / HT", request + "X-A: ", request + "Content-Length: 1000\r\n\r\n"} {
		conn := must.Get(net.Dial("tcp", listener.Addr().String()))(t)
		defer conn.Close()
		fmt.Fprint(conn, begin)
		must.Do(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		answer, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) { // a connection may also be reset, if the text came too late
			t.Errorf("%q is not cut off: %q, %v", begin, answer, err)
		}
	}
}

func notesOn(t *testing.T, w io.Writer) *cli.Notes {
	notes := cli.NewNotes(w)
	t.Cleanup(notes.End)
	return notes
}

func TestComplaintsAreEscapedAndNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		c := &complaints{notes: notesOn(t, &out)}
		for range 3 {
			fmt.Fprintf(c, "one \x1b[2J\n")
		}
		for minute := range 2 {
			for n := range 3 * complaintsKept { // as the failures of strangers' handshakes, which name their ports
				fmt.Fprintf(c, "number %d\n", n)
				synctest.Wait() // until it is written
			}
			if lines := strings.Count(out.String(), "\n"); lines != (minute+1)*complaintsKept {
				t.Errorf("%d lines in %d minutes, want %d in each", lines, minute+1, complaintsKept)
			}
			time.Sleep(complainEvery)
		}
		if strings.Count(out.String(), "one") != 1 || strings.Contains(out.String(), "\x1b") ||
			len(c.at) > complaintsKept {
			t.Errorf("%d kept: %q", len(c.at), out.String())
		}
	})
}

// blocked is a terminal after Ctrl-S.
type blocked struct {
	strings.Builder
	until chan struct{}
}

func (b *blocked) Write(text []byte) (int, error) {
	<-b.until
	return b.Builder.Write(text)
}

func TestAFailureThatNobodyCouldReadIsToldAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := &blocked{until: make(chan struct{})}
		notes := notesOn(t, out)
		strangers, failures := &complaints{notes: notes}, &complaints{notes: notes}
		for n := range 40 {
			fmt.Fprintf(strangers, "number %d\n", n)
		}
		failures.add(errors.New("the database is lost"))
		close(out.until)
		synctest.Wait()
		failures.add(errors.New("the database is lost"))
		synctest.Wait()
		if n := strings.Count(out.String(), "the database is lost"); n != 1 {
			t.Errorf("it is told %d times: %q", n, out.String())
		}
	})
}
