package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// line is a network line to the server that a test can cut.
type line struct {
	proxy *toxiproxy.Proxy
	url   string
}

// newLine puts a fault proxy in front of the server that databaseURL names.
func newLine(t *testing.T, databaseURL string) *line {
	t.Helper()
	u := must.Get(url.Parse(databaseURL))(t)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", u.Host)
	must.Do(t, proxy.Start())
	t.Cleanup(proxy.Stop)
	u.Host = proxy.Listen
	return &line{proxy, u.String()}
}

// cut closes every connection at the first byte that flows in the direction, "upstream" (to the server: a request is
// lost) or "downstream" (an answer is lost), until mend.
func (l *line) cut(t *testing.T, direction string) {
	l.toxic(t, "limit_data", direction, `{"bytes": 0}`)
}

// silence swallows everything that flows in the direction, connections staying open, until mend.
func (l *line) silence(t *testing.T, direction string) {
	l.toxic(t, "timeout", direction, `{"timeout": 0}`)
}

func (l *line) toxic(t *testing.T, kind, direction, attributes string) {
	t.Helper()
	must.Get(l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"name": %q, "type": %q, "stream": %q, "toxicity": 1, "attributes": %s}`, kind+direction, kind, direction,
		attributes))))(t)
}

func (l *line) mend() { l.proxy.Toxics.ResetToxics(context.Background()) }

// network is how a crowd's connections are lost.
type network struct {
	*line
	cancels atomic.Bool  // requests to cancel get through
	lost    atomic.Int32 // how many connections were ended from the other side
	mu      sync.Mutex
	sockets []net.Conn
}

// socket is a connection that notes its end.
type socket struct {
	net.Conn
	lost *atomic.Int32
}

func (s socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		s.lost.Add(1)
	}
	return n, err
}

// dial opens a connection, but none to cancel what is under way on another, unless it may.
func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !n.cancels.Load() && strings.Contains(string(debug.Stack()), ".CancelRequest(") {
		return nil, errors.New("no request to cancel gets through")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.sockets = append(n.sockets, conn)
	n.mu.Unlock()
	return socket{conn, &n.lost}, nil
}

// closeAll ends every connection on the side of the client: what is under way on the server goes on.
func (n *network) closeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sockets {
		_ = s.Close()
	}
	n.sockets = nil
}

func newNetwork(t *testing.T, db *pgtest.DB) *network { return &network{line: newLine(t, db.URL())} }
