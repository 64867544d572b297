package main

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// judged is what list and show say in JSON of a lock, and of its holders.
type judged struct {
	Life    string `json:"life"`
	Verdict string `json:"verdict"`
	Why     string `json:"why"`
}

// One lock has the same verdict, and the same lives, in list and in show.
func TestShowJudgesAsTheListDoes(t *testing.T) {
	db := pgtest.Parallel(t)
	for name, change := range map[string]string{
		"alone":  "acquired_at = clock_timestamp() - interval '1 min'",
		"shared": "acquired_at = clock_timestamp() - interval '1 min'",
		"well":   "slowest = '1 s', renewed_at = clock_timestamp() + interval '10 min'",
		"free":   "expires_at = clock_timestamp() - interval '1 s'",
	} {
		mode := "exclusive"
		if name == "shared" {
			mode = "shared"
		}
		for range map[bool]int{true: 2, false: 1}[mode == "shared"] {
			execute(t, db, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'holder', '1 h',
				p_mode => $2)`, name, mode)
		}
		execute(t, db, "UPDATE pglock.locks SET "+change+" WHERE name = $1", name)
	}
	for name, want := range map[string]judged{
		"alone": {"silent", "warning", "silent"}, "shared": {"silent", "warning", "silent"},
		"well": {"alive", "ok", "held"}, "free": {"", "ok", "free"},
	} {
		said := in(t, db.URL(), "show", name, "-o", "json").want(t, cli.ExitOK).stdout
		show := decode[struct {
			judged
			Lock    judged   `json:"lock"`
			Holders []judged `json:"holders"`
		}](t, said)
		life := judged{Life: want.Life}
		if show.Verdict != want.Verdict || show.Why != want.Why || show.Lock != life {
			t.Errorf("%s: want %+v in %s", name, want, said)
		}
		for _, h := range show.Holders {
			if h != life {
				t.Errorf("%s: want the holder %s in %s", name, want.Life, said)
			}
		}
		list := decode[struct {
			Locks []judged `json:"locks"`
		}](t, in(t, db.URL(), "list", "--all", "--prefix", name, "-o", "json").want(t, cli.ExitOK).stdout)
		for _, l := range list.Locks {
			if l != want {
				t.Errorf("%s: the list says %+v, want %+v", name, l, want)
			}
		}
		a := in(t, db.URL(), "show", name).want(t, cli.ExitOK, strings.ToUpper(want.Verdict)+"\n")
		if strings.Contains(a.stdout, "silent") != (want.Life == "silent") {
			t.Errorf("%s: the holder is %q in\n%s", name, want.Life, a.stdout)
		}
	}
}
