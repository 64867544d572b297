package drivers_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// wire is a network line to the server of a URL, which a test can cut or silence.
type wire struct {
	url      string
	server   string
	listener net.Listener

	mu       sync.Mutex
	conns    map[net.Conn]bool // those that are deaf: what the server says, and that it closes, goes nowhere
	isCut    bool              // what the server says closes its connection
	isSilent bool              // new connections are deaf
}

func newWire(t *testing.T, databaseURL string) *wire {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{server: u.Host, conns: make(map[net.Conn]bool)}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = w.listener.Addr().String()
	w.url = u.String()
	var pumps sync.WaitGroup
	pumps.Go(func() { w.serve(&pumps) })
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.end()
		pumps.Wait()
	})
	return w
}

// cut makes what the server says close its connection, until mend.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
}

// silence makes the connections that there are deaf, and with all those that come until mend.
func (w *wire) silence(all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isSilent = all
	for c := range w.conns {
		w.conns[c] = true
	}
}

// mend makes new connections good ones.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut, w.isSilent = false, false
}

// end closes every connection.
func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}

func (w *wire) serve(pumps *sync.WaitGroup) {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		w.conns[client], w.conns[server] = w.isSilent, w.isSilent
		w.mu.Unlock()
		both := func() { _, _ = client.Close(), server.Close() }
		pumps.Go(func() { defer both(); _, _ = io.Copy(server, client) })
		pumps.Go(func() {
			if w.answer(client, server) {
				both()
			}
		})
	}
}

// answer carries what the server says. False says that the client is not to hear of its end.
func (w *wire) answer(client, server net.Conn) bool {
	buffer := make([]byte, 32<<10)
	for {
		n, err := server.Read(buffer)
		w.mu.Lock()
		isCut, isDeaf := w.isCut, w.conns[server]
		w.mu.Unlock()
		switch {
		case isDeaf && err != nil:
			return false
		case isDeaf:
			continue
		case isCut || err != nil:
			return true
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return true
		}
	}
}
