package integration

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The doctor says what a failover would cost: whether a standby has what was answered, whether commits wait for the
// disk, and whether a client would find the new primary. No standby is information; one that is waited for in vain is
// not.
func TestDoctorSaysWhatAFailoverWouldCost(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	look := newPeer(t, primary.url)
	wants := func(url, item string, severity lockadmin.Severity, value string, words ...string) {
		t.Helper()
		f := findingOf(t, url, item)
		if f.Severity != severity || f.Value != value {
			t.Errorf("want %s, %q, of %+v", severity, value, f)
		}
		for _, w := range words {
			if !strings.Contains(f.Meaning, w) {
				t.Errorf("no %q in %+v", w, f)
			}
		}
	}
	set := func(name, value string) {
		t.Helper()
		look.exec(t, `ALTER SYSTEM SET `+name+` = '`+value+`'`)
		look.exec(t, `SELECT pg_reload_conf()`)
		pgtest.Eventually(t, name+" to be set", func() bool {
			return one[string](t, look, `SELECT current_setting($1)`, name) == value
		})
	}
	wants(primary.url, "synchronous standby", lockadmin.SeverityNote, "none", "a failover may lose the last grants")
	wants(primary.url, "hosts", lockadmin.SeverityOK, "1", "No standby is connected")
	wants(primary.url, "synchronous_commit", lockadmin.SeverityOK, "on", "So do fenced writes.")

	look.exec(t, `ALTER ROLE postgres SET synchronous_commit = local`)
	wants(primary.url, "synchronous_commit", lockadmin.SeverityNote, "local; local for role postgres")
	for _, off := range []string{"false", "no", "0", "OFF"} { // the server keeps what was typed
		look.exec(t, `ALTER ROLE postgres SET synchronous_commit = '`+off+`'`)
		wants(primary.url, "synchronous_commit", lockadmin.SeverityNote, "off; "+off+" for role postgres")
	}
	look.exec(t, `ALTER ROLE postgres RESET synchronous_commit`)
	set("synchronous_commit", "off")
	wants(primary.url, "synchronous_commit", lockadmin.SeverityNote, "off",
		"Grants and renewals wait for the disk in any case. A fenced write does not where this is off")
	set("synchronous_commit", "on")

	standby := newStandby(t, primary)
	wants(primary.url, "synchronous standby", lockadmin.SeverityNote, "none",
		"1 standby is connected: synchronous_standby_names may name one.")
	wants(primary.url, "hosts", lockadmin.SeverityNote, "1, 1 standby is connected",
		"Name all hosts, with target_session_attrs=read-write.")
	here := address(t, primary.url)
	both := strings.Replace(primary.url, here, here+","+address(t, standby.url), 1)
	wants(both, "hosts", lockadmin.SeverityNote, "2, 1 standby is connected", "be it a standby")
	wants(both+"&target_session_attrs=read-write", "hosts", lockadmin.SeverityOK, "2, 1 standby is connected")
	wants(standby.url, "synchronous standby", lockadmin.SeverityNote, "standby", "Ask the primary.")

	set("synchronous_standby_names", "*")
	pgtest.Eventually(t, "the standby to be synchronous", func() bool {
		return one[bool](t, look, `SELECT bool_and(sync_state = 'sync') FROM pg_stat_replication`)
	})
	wants(primary.url, "synchronous standby", lockadmin.SeverityOK, "*", "outlives this server")
	for _, two := range []string{"2 (*)", "FIRST 2 (*)", " any  2(*)"} {
		set("synchronous_standby_names", two)
		pgtest.Eventually(t, "the standby to be one of two", func() bool {
			return one[bool](t, look, `SELECT bool_and(sync_state IN ('sync', 'quorum')) FROM pg_stat_replication`)
		})
		wants(primary.url, "synchronous standby", lockadmin.SeverityWarning, strings.TrimSpace(two),
			"Fewer of these are connected than a commit waits for")
	}
	set("synchronous_standby_names", "ANY 1 (*, elsewhere)")
	wants(primary.url, "synchronous standby", lockadmin.SeverityOK, "ANY 1 (*, elsewhere)")
	set("synchronous_standby_names", "elsewhere")
	pgtest.Eventually(t, "the standby to be asynchronous", func() bool {
		return one[bool](t, look, `SELECT bool_and(sync_state = 'async') FROM pg_stat_replication`)
	})
	wants(primary.url, "synchronous standby", lockadmin.SeverityWarning, "elsewhere", "grants and commits hang")
}
