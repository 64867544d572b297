package integration

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// line is a network line to the server that a test can cut.
type line struct {
	proxy *toxiproxy.Proxy
	url   string
}

// newLine puts a fault proxy in front of the server that databaseURL names.
func newLine(t *testing.T, databaseURL string) *line {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", u.Host)
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
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
	_, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"name": %q, "type": %q, "stream": %q, "toxicity": 1, "attributes": %s}`, kind+direction, kind, direction,
		attributes)))
	if err != nil {
		t.Fatal(err)
	}
}

func (l *line) mend() { l.proxy.Toxics.ResetToxics(context.Background()) }
