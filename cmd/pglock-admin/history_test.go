package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/dev/screens"
)

// badLabel is a label that tries to steer a terminal.
const badLabel = "x\x1b[2J\u202e<b>\n"

// recorded is a database with a history whose times never change.
func recorded(t *testing.T, rows string) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.Database(t)
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(),
		`INSERT INTO pglock.events (lock_name, kind, token, new_token, holder, actor, db_user, reason, session_id, slot, mode, capacity, granted_at, ended_at, at, number)
		SELECT lock_name, kind, token, new_token, holder, actor, 'app', reason, '00000000-0000-4000-8000-000000000001', slot, mode, capacity,
			timestamptz '2026-01-01 10:00 UTC' + g * interval '1 s', timestamptz '2026-01-01 10:00 UTC' + e * interval '1 s', timestamptz '2026-01-01 10:00 UTC' + a * interval '1 s', number
		FROM (VALUES `+rows+
			`) AS v (lock_name, kind, token, new_token, holder, actor, reason, slot, mode, capacity, g, e, a, number)`); err != nil {
		t.Fatal(err)
	}
	return db, conn
}

// below is an answer without the line that names the server and the database.
func below(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}

func TestHistoryShowsEveryKind(t *testing.T) {
	t.Parallel()
	db, conn := recorded(t, `
		('nightly-report', 'release', 40::bigint, NULL::bigint, 'app-1/reporter[1]', NULL::text, NULL::text, 0, 'exclusive', NULL::int, 0, 60, 60, 1::bigint),
		('nightly-report', 'handover', 41, 42, 'app-1/reporter[1]', 'app-2/reporter[2]', NULL, 0, 'exclusive', NULL, 61, 70.25, 70.25, 2),
		('nightly-report', 'takeover', 42, 45, 'app-2/reporter[2]', 'app-3/reporter[3]', NULL, 0, 'exclusive', NULL, 70.25, 100, 130, 3),
		('nightly-report', 'break', 45, 46, 'app-3/reporter[3]', 'alice@ops', 'host is down', 0, 'exclusive', NULL, 130, 200, 200, 4),
		('gpu', 'release', 47, NULL, '`+strings.ReplaceAll(badLabel, "\n", "'||chr(10)||'")+
		`', NULL, NULL, 2, 'limit', 2, 150, 210, 210, 1),
		('nightly-report', 'overlap', 48, 49, 'app-4', 'app-5', NULL, 0, 'exclusive', NULL, 210, 300, 250, 5),
		('once', 'expired', 50, NULL, 'app-6', NULL, NULL, 0, 'exclusive', NULL, 250, 280, 4000, 1),
		('', 'level', 0, NULL, NULL, 'alice@ops', 'level all, kept for 30 days', NULL, NULL, NULL, NULL, NULL, 5000, NULL)`)
	for name, args := range map[string][]string{
		"history":            {"history"},
		"history-of-a-lock":  {"history", "nightly-report"},
		"history-losses":     {"history", "--kind", "takeover,break,expired", "-o", "json"},
		"history-limited":    {"history", "nightly-report", "--limit", "2"},
		"history-of-nothing": {"history", "nobody", "--since", "1h"},
	} {
		a := in(t, db.URL(), args...).want(t, cli.ExitOK)
		text := a.stdout
		if strings.Contains(strings.Join(args, " "), "json") {
			text = regexp.MustCompile(`(?s)"at": \{.*?\},\s*`).ReplaceAllString(text, "")
		} else {
			text = below(text)
		}
		screens.Compare(t, "testdata/history/"+name+".golden", text)
	}
	must.Get(conn.Exec(t.Context(), "SELECT pglock.set_history('me', 'all')"))(t)
	if a := in(t, db.URL(), "history", "gpu").want(t, cli.ExitOK, `"x\x1b[2J\u202e<b>\n"`,
		"1m  "); strings.Contains(a.stdout, "--level all") {
		t.Errorf("%s: want no advice at level all", a.stdout)
	}
	for _, bad := range [][]string{{"--limit", "0"}, {"--kind", "coup"}, {"--before", "0"}, {"--since", "-1h"},
		{"a", "b"}} {
		in(t, db.URL(), append([]string{"history"}, bad...)...).want(t, cli.ExitUsage)
	}
}

func TestRecordShowsAndSetsTheLevel(t *testing.T) {
	db := pgtest.Parallel(t)
	in(t, db.URL(), "record").want(t, cli.ExitOK, "losses: ", "kept for      90d")
	in(t, db.URL(), "record", "--level", "all", "--keep", "30d").want(t, cli.ExitOK, "all: every tenure", "since",
		"kept for      30d")
	v := decode[struct {
		Level string
		Keep  int64 `json:"keep_ms"`
		Since string
	}](t, in(t, db.URL(), "record", "-o", "json").want(t, cli.ExitOK).stdout)
	if v.Level != "all" || v.Keep != 30*24*3600*1000 || v.Since == "" {
		t.Errorf("%+v, want level all for 30 days", v)
	}
	in(t, db.URL(), "history").want(t, cli.ExitOK, "set the history to level all, kept for 30 days", "level")
	for _, bad := range [][]string{{"--level", "most"}, {"--keep", "1h"}, {"--keep", "-1d"}, {"a"}} {
		in(t, db.URL(), append([]string{"record"}, bad...)...).want(t, cli.ExitUsage)
	}
	slow := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(slow.Exec(t.Context(), `LOCK TABLE pglock.locks IN ROW EXCLUSIVE MODE`))(t)
	in(t, db.URL(), "record", "--level", "losses", "--timeout", "6s").want(t, cli.ExitFailure,
		"nothing was changed within 6s", "pg_locks")
	must.Do(t, slow.Rollback(t.Context()))
}

func TestVerifyTellsWhatIsWrongAndExitsWithSeven(t *testing.T) {
	t.Parallel()
	const correct = `
		('a', 'release', 1::bigint, NULL::bigint, 'one', NULL::text, NULL::text, 0, 'exclusive', NULL::int, 0, 60, 60, 1::bigint),
		('a', 'release', 2, NULL, 'two', NULL, NULL, 0, 'exclusive', NULL, 60, 70, 70, 2)`
	in(t, pgtest.Database(t).URL(), "verify").want(t, cli.ExitOK, "found    no tenure to check")
	for name, tc := range map[string]struct {
		rows string
		code int
	}{
		"nothing-wrong": {correct, cli.ExitOK},
		"gaps": {correct + `,
			('a', 'takeover', 9, 11, 'nine', 'eleven', NULL, 0, 'exclusive', NULL, 80, 90, 90, 9),
			('a', 'takeover', 11, 13, 'eleven', 'thirteen', NULL, 0, 'exclusive', NULL, 91, 92, 92, 11),
			('a', 'takeover', 13, 15, 'thirteen', 'fifteen', NULL, 0, 'exclusive', NULL, 93, 94, 94, 13),
			('a', 'takeover', 15, 17, 'fifteen', 'seventeen', NULL, 0, 'exclusive', NULL, 95, 96, 96, 15),
			('a', 'takeover', 17, 18, 'seventeen', 'eighteen', NULL, 0, 'exclusive', NULL, 97, 98, 98, 17)`, cli.ExitOK},
		"wrong": {correct + `,
			('a', 'release', 4, NULL, '` + strings.ReplaceAll(badLabel, "\n", "'||chr(10)||'") +
			`', NULL, NULL, 0, 'exclusive', NULL, 65, 80, 80, 4),
			('gpu', 'release', 9, NULL, 'nine', NULL, NULL, 1, 'limit', 1, 100, 110, 110, 1),
			('gpu', 'release', 8, NULL, 'eight', NULL, NULL, 2, 'limit', 1, 105.5, 120, 120, 1)`, cli.ExitAttention},
		"clock": {correct + `,
			('a', 'release', 3, NULL, 'three', NULL, NULL, 0, 'exclusive', NULL, 20, 30, 30, 3)`, cli.ExitAttention},
	} {
		db, _ := recorded(t, tc.rows)
		a := in(t, db.URL(), "verify").want(t, tc.code)
		screens.Compare(t, "testdata/history/verify-"+name+".golden", below(a.stdout))
		if name == "wrong" {
			in(t, db.URL(), "verify", "gpu", "-o", "json").want(t, cli.ExitAttention, `"by_us": 10000000`, `"keep_ms": `)
		}
		if tc.code != cli.ExitOK {
			continue
		}
		v := decode[struct {
			OK         bool
			Tenures    int
			Violations []any
			Gaps       []any
			GapCount   int `json:"gap_count"`
		}](t, in(t, db.URL(), "verify", "a", "-o", "json").want(t, cli.ExitOK).stdout)
		if tenures := map[string]int{"nothing-wrong": 2, "gaps": 7}[name]; !v.OK || v.Tenures != tenures ||
			v.Violations == nil || v.Gaps == nil || len(v.Gaps) != v.GapCount {
			t.Errorf("%+v, want %d tenures, nothing wrong, and all gaps", v, tenures)
		}
		in(t, db.URL(), "verify", "nobody").want(t, cli.ExitNotHeld, "nobody does not exist")
		in(t, db.URL(), "verify", "a", "b").want(t, cli.ExitUsage)
	}
}

func TestTheHistoryNeedsTheRoleOfAnOperator(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "pglock_user")
	for _, command := range [][]string{{"history"}, {"record"}, {"record", "--level", "all"}, {"verify"}} {
		in(t, user, command...).want(t, cli.ExitPermission, "pglock_admin")
	}
}
