package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/serve"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// served is a page that pglock-admin serve shows.
type served struct {
	t      *testing.T
	url    string
	client *http.Client
	stop   context.CancelFunc
	ended  chan struct{}
	code   int
	said   string
	stderr *strings.Builder
}

// serveOn runs the command until the test ends, and waits until it listens on a free port.
func serveOn(t *testing.T, db *pgtest.DB, environment map[string]string, args ...string) *served {
	t.Helper()
	said := new(strings.Builder)
	s := serveTo(t, db.URL(), environment, said, args...)
	s.stderr = said
	return s
}

// serveTo is serveOn whose messages go elsewhere.
func serveTo(t *testing.T, url string, environment map[string]string, stderr io.Writer, args ...string) *served {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	s := &served{t: t, stop: stop, ended: make(chan struct{})}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port)) // whatever the name
	}
	s.client = &http.Client{Transport: transport}
	go func() {
		defer close(s.ended)
		s.code = obey(ctx, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...), func(name string) string {
			if name == "DATABASE_URL" {
				return url
			}
			return environment[name]
		}, in, stderr)
		in.Close()
	}()
	t.Cleanup(func() {
		stop()
		<-s.ended
		transport.CloseIdleConnections()
	})
	lines := bufio.NewReader(out)
	for s.url == "" {
		line, err := lines.ReadString('\n')
		s.said += line
		if found := regexp.MustCompile(`(?:the page is at|"url":) "?(https?://[^\s"]+)`).FindStringSubmatch(line); found != nil {
			s.url = found[1]
		}
		if err != nil {
			<-s.ended
			t.Fatalf("exit code %d: %s%v", s.code, s.said, stderr)
		}
	}
	go io.Copy(io.Discard, lines) // until the command ends
	return s
}

// ask sends a request; each header is "Name: value".
func (s *served) ask(method, path, body string, headers ...string) (status int, text string) {
	s.t.Helper()
	r := must.Get(http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body)))(s.t)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	got := must.Get(s.client.Do(r))(s.t)
	defer got.Body.Close()
	all := must.Get(io.ReadAll(got.Body))(s.t)
	return got.StatusCode, string(all)
}

func (s *served) want(status int, path string, headers ...string) string {
	s.t.Helper()
	got, text := s.ask(http.MethodGet, path, "", headers...)
	if got != status {
		s.t.Errorf("%s %v: status %d, want %d: %.300s", path, headers, got, status, text)
	}
	return text
}

// endsWithin interrupts the command.
func (s *served) endsWithin(limit time.Duration) {
	s.t.Helper()
	s.stop()
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.t.Fatalf("it does not end within %v", limit)
	}
	if s.code != cli.ExitOK {
		s.t.Errorf("exit code %d", s.code)
	}
}

func TestServeNamesAsManyLocksInItsMetricsAsAsked(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "app-1", "nightly")
	for number, named := range map[string]bool{"0": false, "1": true} {
		text := serveOn(t, db, nil, "--metrics-locks", number).want(200, "metrics")
		if strings.Contains(text, `pglock_lock_leases{lock="nightly"} 1`) != named ||
			!strings.Contains(text, "pglock_leases 1\n") {
			t.Errorf("--metrics-locks %s: %s", number, text)
		}
	}
}

func TestServeShowsThePageUntilItIsInterrupted(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "app-1", "nightly")
	s := serveOn(t, db, nil)
	if !strings.Contains(s.said, "at ") || !strings.HasPrefix(s.url, "http://127.0.0.1:") {
		t.Errorf("it said %q", s.said)
	}
	if page := s.want(200, ""); !strings.Contains(page, "<!doctype html>") || !strings.Contains(page, db.Name()) {
		t.Errorf("the page is %s", page)
	}
	s.want(200, "assets/main.js")
	if list := s.want(200, "api/locks"); !strings.Contains(list, `"name":"nightly"`) ||
		!strings.Contains(list, `"can_break":false`) {
		t.Errorf("%s", list)
	}
	if text := s.want(200, "healthz"); text != "ok\n" {
		t.Errorf("healthz: %q", text)
	}
	if text := s.want(200, "metrics"); !strings.Contains(text, "pglock_up 1\n") {
		t.Errorf("metrics: %s", text)
	}
	got := must.Get(s.client.Get(s.url + "api/stream"))(t)
	defer got.Body.Close()
	s.stop()
	if _, err := io.ReadAll(got.Body); err != nil { // a stream that is cut off has no end
		t.Errorf("the stream ended with %v", err)
	}
	<-s.ended
	if s.code != cli.ExitOK || s.stderr.String() != "" {
		t.Errorf("exit code %d: %s", s.code, s.stderr.String())
	}
}

// Nobody takes what it writes to standard error, as after Ctrl-S.
func TestServeGoesOnWhereNobodyReadsItsMessages(t *testing.T) {
	db := pgtest.Parallel(t)
	unread, stderr := io.Pipe()
	s := serveTo(t, db.URL(), nil, stderr)
	defer unread.Close()
	s.client.Timeout = patience
	got := must.Get(s.client.Get(s.url + "api/stream"))(t)
	defer got.Body.Close()
	events := bufio.NewReader(got.Body)
	wait := func(event string) {
		t.Helper()
		for line := ""; line != "event: "+event+"\n"; {
			line = must.Get(events.ReadString('\n'))(t)
		}
	}
	wait("locks")
	execute(t, db, "ALTER SCHEMA pglock RENAME TO elsewhere")
	wait("problem")
	s.want(503, "healthz")
	if text := s.want(200, "metrics"); !strings.Contains(text, "pglock_up 0\n") {
		t.Errorf("metrics: %s", text)
	}
	s.endsWithin(6 * time.Second)
}

// Another site's name for this address must not let its script read the page.
func TestServeKnowsItsOwnNamesAlone(t *testing.T) {
	t.Parallel()
	s := serveOn(t, pgtest.Database(t), nil, "--host", "Locks.example.com")
	for host, status := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:80": 200, "[::1]:9": 200, "localhost": 200, "localhost:8080": 200,
		"LOCALHOST.":        200,
		"locks.example.com": 200, "locks.example.com:443": 200,
		"evil.example": 421, "evil.example:8080": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
		"xlocalhost": 421,
	} {
		for _, path := range []string{"", "api/locks", "metrics", "healthz"} {
			if text := s.want(status, path, "Host: "+host); status != 200 &&
				!strings.HasSuffix(text, "allow it with --host.\n") {
				t.Errorf("%s is told more: %s", host, text)
			}
		}
	}
	if !strings.HasPrefix(s.url, "http://Locks.example.com:") {
		t.Errorf("the page is at %s", s.url)
	}
}

func TestServeAsksForWhoIsNamedInFilesAndVariables(t *testing.T) {
	db := pgtest.Parallel(t)
	people, tokens := filepath.Join(t.TempDir(), "people"), filepath.Join(t.TempDir(), "tokens")
	write(t, people, "# who may look\n\nalice:correct:horse\r\n")
	write(t, tokens, "prometheus:0123456789abcdef\n")
	s := serveOn(t, db, map[string]string{serve.PasswordVariable: "bob:battery staple"}, "--basic-auth-file", people,
		"--token-file", tokens, "--enable-break")
	const alice, bob = "YWxpY2U6Y29ycmVjdDpob3JzZQ==", "Ym9iOmJhdHRlcnkgc3RhcGxl"
	for _, path := range []string{"", "api/locks", "metrics", "assets/main.js"} {
		s.want(401, path)
		s.want(401, path, "Authorization: Bearer 0123456789abcdeg")
		s.want(200, path, "Authorization: Basic "+alice)
		s.want(200, path, "Authorization: Basic "+bob)
		s.want(200, path, "Authorization: Bearer 0123456789abcdef")
	}
	s.want(200, "healthz")
	for _, secret := range []string{"horse", "battery", "0123456789"} {
		if strings.Contains(s.said+s.stderr.String(), secret) {
			t.Errorf("it prints %q: %s", secret, s.said)
		}
	}
}

func TestServeBreaksInTheNameOfWhoeverRunsIt(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "app-1", "nightly")
	s := serveOn(t, db, nil, "--enable-break")
	body := fmt.Sprintf(`{"name":"nightly","token":"%d","reason":"stuck"}`, lease.Token())
	if status, text := s.ask(http.MethodPost, "api/break", body, "Content-Type: application/json",
		"Origin: http://evil.example"); status != 403 {
		t.Errorf("from another site: status %d: %s", status, text)
	}
	if status, text := s.ask(http.MethodPost, "api/break", body, "Content-Type: application/json"); status != 200 {
		t.Errorf("status %d: %s", status, text)
	}
	if text := s.want(200, "api/history?name=nightly"); !strings.Contains(text, `"actor":"`+cli.Actor()+`"`) {
		t.Errorf("%s", text)
	}
}

func TestServeSpeaksTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := serveOn(t, pgtest.Database(t), nil, "--tls-cert", cert, "--tls-key", key, "-o", "json")
	if !strings.HasPrefix(s.url, "https://127.0.0.1:") {
		t.Errorf("the page is at %s", s.url)
	}
	got := must.Get(s.client.Get(s.url + "api/stream"))(t)
	defer got.Body.Close()
	line, err := bufio.NewReader(got.Body).ReadString('\n')
	if err != nil || got.ProtoMajor != 2 || line != "retry: 2000\n" {
		t.Errorf("%s: %q, %v", got.Proto, line, err)
	}
}

func TestServeRefusesWhatWouldLetStrangersIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		write(t, path, text)
		return path
	}
	people, empty := file("people", "alice:correct horse\n"), file("empty", "# nobody\n")
	for _, line := range []struct {
		args []string
		says string
	}{
		{[]string{"--listen", ":8080"}, "say who may see the page"},
		{[]string{"--listen", "0.0.0.0:8080"}, "say who may see the page"},
		{[]string{"--listen", "[::]:8080"}, "say who may see the page"},
		{[]string{"--listen", "locks.example.com:8080"}, "say who may see the page"},
		{[]string{"--listen", ":8080", "--without-auth", "--enable-break"}, "say who may break locks"},
		{[]string{"--without-auth", "--basic-auth-file", people}, "one of the two"},
		{[]string{"--listen", "8080"}, "HOST:PORT"},
		{[]string{"--tls-cert", "x"}, "--tls-cert and --tls-key"},
		{[]string{"--tls-cert", people, "--tls-key", people}, "--tls-cert and --tls-key"},
		{[]string{"--basic-auth-file", filepath.Join(dir, "none")}, "--basic-auth-file: no such file"},
		{[]string{"--token-file", empty}, "the file names nobody"},
		{[]string{"--token-file", file("no-colon", "0123456789abcdef\n")},
			"--token-file, line 1: it must be NAME:TOKEN"},
		{[]string{"--token-file", file("short", "a:secret-1\nb:secret\n")}, "--token-file, line 2: token is 6 bytes " +
			"long"},
		{[]string{"--basic-auth-file", file("twice", "a:secret-1\na:secret-2\n")},
			`name is "a": it must be given once`},
		{[]string{"--basic-auth-file", file("long", strings.Repeat("#", serve.CredentialBytes+1))}, "more than"},
		{[]string{"--host", "locks.example.com:80"}, "without a port"},
		{[]string{"--max-streams", "0"}, "streams is 0"},
		{[]string{"--metrics-locks", "1001"}, "--metrics-locks is 1001"},
		{[]string{"extra"}, "takes no arguments"},
	} {
		a := admin(t, append([]string{"serve", "--database-url", "postgres://nobody@127.0.0.1:1/none"},
			line.args...)...).want(t, cli.ExitUsage, line.says)
		if strings.Contains(a.stderr, "secret") {
			t.Errorf("%v prints a secret: %s", line.args, a.stderr)
		}
	}
}

func TestServeNeedsTheDatabaseAndItsSchemaAndAFreePort(t *testing.T) {
	t.Parallel()
	in(t, "postgres://nobody@127.0.0.1:1/none", "serve").want(t, cli.ExitUnreachable, "cannot connect")
	in(t, pgtest.EmptyDatabase(t).URL(), "serve").want(t, cli.ExitSchema, "is missing")
	in(t, asUser(t, pgtest.Database(t), "pglock_user"), "serve", "--enable-break").want(t, cli.ExitPermission,
		"GRANT pglock_admin TO")
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	in(t, pgtest.Database(t).URL(), "serve", "--listen", taken.Addr().String()).want(t, cli.ExitFailure,
		"cannot listen on 127.0.0.1:", "takes a free port")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

// certificate makes one for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pglock"},
		NotAfter:    time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	private := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return certFile, keyFile
}

// A title does not hide which locks the page shows.
func TestServeNamesItsDatabaseBesideTheTitle(t *testing.T) {
	db := pgtest.Parallel(t)
	s := serveOn(t, db, nil, "--title", "staging")
	database := `name="pglock-database" content="` + db.Name() + `"`
	for _, text := range []string{`name="pglock-title" content="staging"`, database} {
		if page := s.want(200, ""); !strings.Contains(page, text) {
			t.Errorf("no %s in %s", text, page)
		}
	}
}
