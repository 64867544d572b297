package pglock

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestPoolOfOpenIsSmallUnlessTheURLSaysOtherwise(t *testing.T) {
	for query, want := range map[string]struct {
		size int32
		idle time.Duration
	}{
		"":                                {4, 5 * time.Minute},
		"?pool_max_conns=9":               {9, 5 * time.Minute},
		"?pool_max_conns=1":               {1, 5 * time.Minute},
		"?pool_min_conns=6":               {6, 5 * time.Minute},
		"?pool_max_conn_idle_time=1h":     {4, time.Hour},
		"?default_query_exec_mode=exec":   {4, 5 * time.Minute},
		"?target_session_attrs=read-only": {4, 5 * time.Minute},
	} {
		config, err := parseURL("postgres://user:secret@host/base" + query)
		if err != nil {
			t.Fatalf("%q: %v", query, err)
		}
		if config.MaxConns != want.size || config.MaxConnIdleTime != want.idle {
			t.Errorf("%q: %d connections, idle for %v; want %d and %v", query, config.MaxConns, config.MaxConnIdleTime,
				want.size, want.idle)
		}
	}
}

func TestConnectionsOfOpenKeepTheApplicationsNameWhereItHasOne(t *testing.T) {
	name := func(url string) string {
		config := must.Get(parseURL(url))(t)
		return config.ConnConfig.RuntimeParams["application_name"]
	}
	t.Setenv("PGAPPNAME", "")
	if got := name("host=h"); !regexp.MustCompile(`^pglock [!-~]+/pglock\.test\[\d+\]$`).MatchString(got) ||
		len(got) > 63 {
		t.Errorf("without a name: %q", got)
	}
	if got := name("host=h application_name=shop"); got != "shop" {
		t.Errorf("with a name in the URL: %q", got)
	}
	t.Setenv("PGAPPNAME", "till")
	if got := name("host=h"); got != "till" {
		t.Errorf("with a name in the environment: %q", got)
	}
}

func TestURLThatCannotBeReadIsRefusedWithoutItsPassword(t *testing.T) {
	for url, reason := range map[string]string{
		"postgres://user:hush-hush@host:port/base":          "port",
		"postgres://user:hush-hush@[::1/base":               "URL",
		"postgres://user:hush%zzhush@host/base":             "URL",
		"postgres://user:hush-hush@host/base?sslmode=hush":  "TLS",
		"host=h password=two hush-hush words":               "keyword/value",
		"host=h password='hush-hush":                        "keyword/value",
		"host=h connect_timeout=10password=hush-hush":       "connect_timeout",
		"host=h target_session_attrs=anypassword=hush-hush": "target_session_attrs",
		"hush-hush": "keyword/value",
		"postgres://user:hush-hush@host/base?pool_max_conns=none":    "pool_max_conns",
		"postgres://user:hush`: hush@host/base?pool_max_conns=none":  "URL",
		"postgres://user:hush-hush@host/base?service=hush-hush":      "service",
		"postgres://user:hush-hush@host/base?sslrootcert=/hush/hush": "TLS",
	} {
		_, err := Open(t.Context(), url)
		var refused *ArgumentError
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &refused) || refused.Field != "url" {
			t.Errorf("%q: %v, want ErrInvalid", url, err)
			continue
		}
		if strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v, want the reason %q and nothing of the password", url, err, reason)
		}
		for wrapped := errors.Unwrap(err); wrapped != nil; wrapped = errors.Unwrap(wrapped) {
			if strings.Contains(wrapped.Error(), "hush") {
				t.Errorf("%q wraps %v", url, wrapped)
			}
		}
	}
}
