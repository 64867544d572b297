package browser

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// stuckToTheTop tells what the page says of its place that is on the screen, whole, when the page is scrolled.
const stuckToTheTop = `(() => {
  document.body.style.minHeight = '3000px';
  window.scrollTo(0, 2000);
  const seen = [...document.querySelectorAll('#place .part')].filter((e) => {
    const r = e.getBoundingClientRect();
    return r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth &&
      Math.ceil(r.width) >= e.scrollWidth &&
      e.contains(document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2));
  }).map((e) => e.innerText);
  const scrolled = window.scrollY > 500;
  document.body.style.minHeight = '';
  window.scrollTo(0, 0);
  return (scrolled ? '' : 'not scrolled: ') + seen.join(', ');
})()`

func TestEveryViewSaysWhichLocksTheseAre(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice, withTitle("production, eu-1"))
	s.scene()
	place := s.admin.Place()
	want := "production, eu-1, server " + place.Server + ", database " + place.Database + ", schema pglock"
	p := open(t, s.home, "", 390, 844)
	all := append([][2]string{{"#/no/such/view", ".unknown"}}, views...)
	for _, size := range [][2]int64{{390, 844}, {1240, 900}} {
		p.do(chromedp.EmulateViewport(size[0], size[1]))
		for _, v := range all {
			p.visit(v)
			if got := eval[string](p, stuckToTheTop); got != want {
				t.Errorf("%s, %d pixels wide: %q, want %q", v[0], size[0], got, want)
			}
		}
	}
}

func TestTheDialogSaysWhereItBreaks(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "nightly")
	place := s.admin.Place()
	for _, width := range []int64{390, 1240} {
		p := open(t, s.home, "#/lock?name=nightly", width, 844)
		p.openDialog()
		const facts = "document.querySelector('dialog .facts').innerText"
		got := strings.Join(strings.Fields(eval[string](p, facts)), " ")
		want := "Server " + place.Server + " Database " + place.Database + " Lock nightly "
		if !strings.HasPrefix(got, want) || strings.Contains(got, "Schema") {
			t.Errorf("%d pixels wide: the dialog has %q, want that it begins with %q, and no schema", width, got, want)
		}
		if title := eval[string](p, "document.title"); !strings.Contains(title, place.String()) {
			t.Errorf("title %q, want %q in it", title, place)
		}
	}
}

// An ssh tunnel leads to staging now, or another serve has the port.
func TestAnAddressThatLeadsToAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	lease := s.hold("app-1", "nightly")
	there := newStage(t, asAlice)
	if other := there.hold("app-9", "nightly"); other.Token() != lease.Token() {
		t.Fatalf("the tokens differ: %d and %d", lease.Token(), other.Token())
	}
	there.hold("app-9", "only there")
	s.hold("app-1", "only here")
	away := func(w http.ResponseWriter, r *http.Request) bool {
		there.server.Config.Handler.ServeHTTP(w, r)
		return true
	}
	banner := "this address leads to another database now: " + there.admin.Place().String() + ". Load the page again."
	for _, v := range []struct{ address, is, text string }{
		{"#/locks", "tbody th", "only here"},
		{"#/sessions", "tbody th", "app-1"},
		{"#/lock?name=only%20here", ".sentence", "app-1 has held it"},
		{"#/lock?name=nightly", ".sentence", "app-1 has held it"},
	} {
		p := open(t, s.home, v.address, 1240, 900)
		p.expectLostConnections()
		p.expect("409 (Conflict)")
		p.text(v.is, v.text)
		p.text("#link", "live")
		if v.address == "#/lock?name=nightly" {
			p.openDialog()
			p.reason("host is down")
		}
		s.answer(away)
		s.server.CloseClientConnections()
		p.text("#banner", banner)
		p.text("#link", "refused")
		p.text(v.is, v.text) // what was known stays, marked as old
		if v.address == "#/lock?name=nightly" {
			p.click("dialog button[type=submit]")
			p.text("dialog .refusal", "This address leads to another database now: "+there.admin.Place().String())
			if info, err := there.admin.Get(t.Context(), "nightly"); err != nil || !info.Held {
				t.Errorf("%+v, %v: want that nothing was broken there", info, err)
			}
			p.press(kb.Escape)
		}
		s.answer(nil) // the tunnel leads back
		s.server.CloseClientConnections()
		p.gone("#banner")
		p.text("#link", "live")
	}
}

// Behind a tunnel two databases may have the same words, and leases with the same name and token.
func TestABreakInAnotherDatabaseOfTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	chromium(t)
	db, other := pgtest.Database(t), pgtest.Database(t)
	s := stageOn(t, db.Pool(t), asAlice)
	there := stageOn(t, other.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.Database = db.Name()
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.Database = other.Name(); return nil }
	}), asAlice)
	lease, same := s.hold("app-1", "nightly"), there.hold("app-1", "nightly")
	if s.admin.Place() != there.admin.Place() || lease.Token() != same.Token() {
		t.Fatalf("%v, token %d; %v, token %d", s.admin.Place(), lease.Token(), there.admin.Place(), same.Token())
	}
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("409 (Conflict)")
	p.openDialog()
	p.reason("host is down")
	s.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/api/break") {
			return false
		}
		there.server.Config.Handler.ServeHTTP(w, r)
		return true
	})
	p.click("dialog button[type=submit]")
	p.text("dialog .refusal", "this address may lead to another database now. Nothing was broken.")
	for _, l := range []*pglock.Lease{lease, same} {
		if _, err := l.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Names may have anything in them here, too. The dialog names a schema that is not the usual one.
func TestAnotherSchemaIsNamed(t *testing.T) {
	t.Parallel()
	chromium(t)
	const schema = "<b>my\u202e locks"
	db := pgtest.EmptyDatabase(t)
	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema(schema)))
	admin := must.Get(lockadmin.New(t.Context(), db.Pool(t), lockadmin.WithSchema(schema)))(t)
	s := stageOf(t, admin, asAlice)
	name := pgx.Identifier{schema}.Sanitize()
	db.Look(t, func(conn *pgx.Conn) {
		take := "SELECT " + name + ".acquire_lease('nightly', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')"
		must.Get(conn.Exec(t.Context(), take))(t)
		must.Get(conn.Exec(t.Context(), "INSERT INTO "+name+`.waiters (name, ticket, mode, grant_id, session_id, nested,
			holder, ttl, enqueued_at) SELECT 'nightly', 1000 + n, 'exclusive', gen_random_uuid(), gen_random_uuid(), false,
			'app-2', '1 s', now() FROM generate_series(1, 201) n`))(t)
	})
	p := open(t, s.home, "#/lock?name=nightly", 390, 844)
	p.text("#place", `schema <b>my\u202e locks`)
	for _, command := range []string{"waiters nightly", "record --level all"} {
		p.until("[...document.querySelectorAll('.hint .one-line')].some(e => e.textContent === " +
			quote("pglock-admin "+command+` --schema '<b>my\u202e locks'`) + ")")
	}
	p.openDialog()
	p.text("dialog .facts", `Schema<b>my\u202e locks`)
	p.until(`document.title.includes(', schema <b>my\\u202e locks – ')`)
	if n := eval[int](p, "document.querySelectorAll('#place b, dialog b').length"); n != 0 {
		t.Errorf("a text has become %d elements", n)
	}
}
