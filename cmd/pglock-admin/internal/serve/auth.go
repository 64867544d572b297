package serve

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The environment variables with people and tokens, and the size of such a list.
const (
	PasswordVariable = "PGLOCK_SERVE_BASIC_AUTH"
	tokenVariable    = "PGLOCK_SERVE_TOKENS"
	CredentialBytes  = 1 << 20
)

// credentials is where the names of people, and their secrets, come from.
type credentials struct {
	passwordFile, tokenFile string
	people                  []dashboard.Person
}

func (c *credentials) any() bool { return len(c.people) > 0 }

func (c *credentials) read(getenv func(string) string) error {
	for _, source := range []struct {
		flag, file, variable, kind string
	}{
		{"--basic-auth-file", c.passwordFile, PasswordVariable, "PASSWORD"},
		{"--token-file", c.tokenFile, tokenVariable, "TOKEN"},
	} {
		before := len(c.people)
		if source.file != "" {
			text, err := readShort(source.file)
			if err != nil {
				return cli.UsageErrorf("a file that this user can read", "%s: %s", source.flag, cli.Innermost(err))
			}
			if err := c.add(source.flag, source.kind, text); err != nil {
				return err
			}
			if len(c.people) == before {
				return cli.UsageErrorf("a line NAME:"+source.kind, "%s: the file names nobody", source.flag)
			}
		}
		if err := c.add("$"+source.variable, source.kind, getenv(source.variable)); err != nil {
			return err
		}
	}
	return nil
}

// add reads lines. No message repeats what may be a secret.
func (c *credentials) add(from, kind, text string) error {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, secret, found := strings.Cut(line, ":")
		if !found || name == "" || secret == "" {
			return cli.UsageErrorf("NAME:"+kind, "%s, line %d: it must be NAME:%s", from, number, kind)
		}
		one := dashboard.Person{Name: name, Secret: secret, Token: kind == "TOKEN"}
		if err := try(dashboard.Config{People: []dashboard.Person{one}}); err != nil {
			return cli.UsageErrorf(cli.ValidInstead(err), "%s, line %d: %s", from, number, cli.Message(err))
		}
		c.people = append(c.people, one)
	}
	return nil
}

// try tells what is wrong with a page, before anything is done: a Dashboard asks its Admin nothing until somebody
// looks.
func try(c dashboard.Config) error {
	trial, err := dashboard.New(new(lockadmin.Admin), c)
	if err == nil {
		trial.Close()
	}
	return err
}

func readShort(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, CredentialBytes+1))
	if err == nil && len(text) > CredentialBytes {
		err = fmt.Errorf("the file has more than %d bytes", CredentialBytes)
	}
	return string(text), err
}

// check reads the flags, before anything is done. It returns what the page is made of.
func (s *serving) check(o *cli.Options) (page dashboard.Config, err error) {
	if err = s.people.read(o.Getenv); err != nil {
		return page, err
	}
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return page, cli.UsageErrorf("--listen 127.0.0.1:8080", "--listen is %q: it must be HOST:PORT", s.listen)
	}
	switch {
	case s.people.any() && s.withoutAuth:
		return page, cli.UsageErrorf("one of the two", "--without-auth lets everybody in, and names and passwords "+
			"are given")
	case !s.people.any() && !s.withoutAuth && !isLoopback(host):
		return page, cli.UsageErrorf("--basic-auth-file or --token-file; or --without-auth, if everybody there may "+
			"see the locks",
			"others than this machine can reach %s: say who may see the page", s.listen)
	case !s.people.any() && s.enableBreak && !isLoopback(host):
		return page, cli.UsageErrorf("--basic-auth-file or --token-file as well",
			"others than this machine can reach %s: say who may break locks", s.listen)
	case s.named < 0 || s.named > lockadmin.MaxTop:
		return page, cli.UsageErrorf(fmt.Sprintf("a number from 0 to %d", lockadmin.MaxTop), "--metrics-locks is %d",
			s.named)
	case (s.cert == "") != (s.key == ""):
		return page, cli.UsageErrorf("--tls-cert and --tls-key", "https needs both a certificate and its key")
	}
	for _, host := range s.hosts {
		if host == "" || strings.ContainsAny(host, ":/@ ") {
			return page, cli.UsageErrorf("--host locks.example.com", "--host is %q: it must be a name without a port",
				host)
		}
	}
	page = dashboard.Config{Title: s.title, Breaks: s.enableBreak, People: s.people.people, Streams: s.streams}
	switch {
	case s.people.any():
	case s.enableBreak: // whoever uses this machine, in the name of whoever runs this
		page.Auth = func(*http.Request) (dashboard.Identity, error) {
			return dashboard.Identity{Name: cli.Actor(), MayBreak: true}, nil
		}
	default:
		page.Anybody = true
	}
	if err = cmp.Or(refuse.Number("streams", s.streams, 1, dashboard.MaxStreams), try(page)); err != nil {
		return page, cli.UsageErrorf(cli.ValidInstead(err), "%s", cli.Message(err))
	}
	return page, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// certificates reads the files for https; nil means http.
func (s *serving) certificates() (*tls.Config, error) {
	if s.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		return nil, cli.UsageErrorf("a certificate and its key in PEM", "--tls-cert and --tls-key: %s",
			cli.Innermost(err))
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"}}, nil
}

// url is the address of the page for a browser on this machine.
func (s *serving) url(at net.Addr) string {
	scheme := shown.Either(s.cert == "", "http", "https")
	host, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return at.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	if len(s.hosts) > 0 {
		host = s.hosts[0]
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}

// guarded refuses requests that name this server in a way that it does not know. Without that any site could point a
// name of its own to this address, and have its visitors' browsers read the page. Credentials do not travel to such a
// name, so a page that asks for them needs the check only where it is asked for.
func (s *serving) guarded(next http.Handler) http.Handler {
	host, _, _ := net.SplitHostPort(s.listen)
	if s.people.any() && !isLoopback(host) && len(s.hosts) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Host
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
		if net.ParseIP(name) == nil && name != "localhost" && !slices.ContainsFunc(s.hosts, func(h string) bool {
			return strings.EqualFold(h, name)
		}) {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			http.Error(w, "This name does not belong to this server. Whoever runs it can allow it with --host.",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
