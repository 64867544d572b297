//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func TestListMarksSubtreesAndDrawsATree(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "mover", "tenants/7", pglock.WithSubtree())
	hold(t, db, "reader", "tenants/8/reports/daily", pglock.WithShared())
	hold(t, db, "reader", "tenants/8/reports/weekly", pglock.WithShared(), pglock.WithSubtree())
	hold(t, db, "writer", "tenants", pglock.WithLimit(2))
	hold(t, db, "writer", "tenants!")
	await(t, db, "importer", "tenants/7/import", pglock.ModeExclusive, 0)

	in(t, db.URL(), "list").want(t, cli.ExitOK, "tenants/7 ", "exclusive subtree", "shared subtree #1", "shared #1")
	in(t, db.URL(), "list", "tenants/8/").want(t, cli.ExitOK, "tenants/8/reports/daily")
	v := decode[look.ListView](t, in(t, db.URL(), "list", "tenants/7", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(v.Locks) != 1 || !v.Locks[0].Subtree {
		t.Errorf("%+v", v)
	}
	in(t, db.URL(), "show", "tenants/7").want(t, cli.ExitOK, "exclusive subtree")
	in(t, db.URL(), "show", "tenants/7/import").want(t, cli.ExitOK, "nobody holds it; tenants/7 of mover is in the way")
	in(t, db.URL(), "waiters").want(t, cli.ExitOK, "tenants/7 of mover")

	a := in(t, db.URL(), "list", "--all", "-o", "tree").want(t, cli.ExitOK)
	_, tree, _ := strings.Cut(a.stdout, "\n") // the server
	want := []string{
		"tenants  OK  limit 2 #1  writer, token ",
		"├─ 7  OK  exclusive subtree  mover, token ",
		"│  └─ import  BUSY  free, nobody has held it yet, 1 waiting",
		"└─ 8/reports/",
		"   ├─ daily  OK  shared #1  reader, token ",
		"   └─ weekly  OK  shared subtree #1  reader, token ",
		"'tenants!'  OK  exclusive  writer, token ",
	}
	lines := strings.Split(strings.TrimSpace(tree), "\n")
	for n, begins := range want {
		if n >= len(lines) || !strings.HasPrefix(lines[n], begins) {
			t.Fatalf("line %d does not begin with %q:\n%s", n, begins, tree)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%s", tree)
	}
	in(t, db.URL(), "break", "tenants/7", "--reason", "a test").want(t, cli.ExitOK)
	in(t, db.URL(), "history").want(t, cli.ExitOK, "subtree; by ")
	in(t, db.URL(), "list", "nothing/", "-o", "tree").want(t, cli.ExitOK, "no lock fits these flags")
	in(t, db.URL(), "show", "tenants", "-o", "tree").want(t, cli.ExitUsage, "table, json or yaml")
	in(t, db.URL(), "list", "a", "--prefix", "b").want(t, cli.ExitUsage, "mean the same")
}

func TestRunTakesASubtree(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "importer", "tenants/7/import")
	p := running(t, db.URL(), line("tenants/7 --subtree --try", sh("exit 0"))...)
	p.ends(t, run.ExitHeld, "lock tenants/7 is not free: importer holds tenants/7/import, which lies above or below",
		"pglock-admin why tenants/7")
	mover := running(t, db.URL(), line("tenants/7 --subtree --wait 10m --holder mover", sh("exit 0"))...)
	pgtest.Eventually(t, "the mover waits", func() bool {
		return ask[int](t, db, `SELECT count(*) FROM pglock.waiters`) == 1
	})
	running(t, db.URL(), line("tenants/7/export --try", sh("exit 0"))...).ends(t, run.ExitHeld,
		"lock tenants/7/export is not free: mover came first, and waits for tenants/7, which lies above or below")
	must.Do(t, lease.Release(t.Context()))
	mover.ends(t, 0)
	p = running(t, db.URL(), line("tenants/7 --subtree --try", sh("echo in; read x"))...)
	p.line(t)
	below := running(t, db.URL(), line("tenants/7/import --try", sh("exit 0"))...)
	below.ends(t, run.ExitHeld, "lock tenants/7/import is not free: ", " holds tenants/7, which lies above")
	running(t, db.URL(), line("tenants/8/import --try", sh("exit 0"))...).ends(t, 0)
}

func TestRunNamesTheWaiterThatGoesFirst(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "a reader", "a", pglock.WithShared())
	running(t, db.URL(), line("a --wait 10m --holder writer", sh("exit 0"))...)
	pgtest.Eventually(t, "the writer waits", func() bool {
		return ask[int](t, db, `SELECT count(*) FROM pglock.waiters`) == 1
	})
	p := running(t, db.URL(), line("a --shared --try", sh("echo never"))...)
	p.ends(t, run.ExitHeld, "lock a is not free: writer waits for it, and goes first", "pglock-admin why a tells more")
}
