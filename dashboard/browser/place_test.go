package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
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
	title := dashboard.WithTitle("production, eu-1")
	s := newStage(t, append(asAlice(), title)...)
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
	s := newStage(t, asAlice()...)
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

// Names may have anything in them here, too. The dialog names a schema that is not the usual one.
func TestAnotherSchemaIsNamed(t *testing.T) {
	t.Parallel()
	chromium(t)
	const schema = "<b>my\u202e locks"
	db := pgtest.EmptyDatabase(t)
	if err := migrations.Up(t.Context(), db.URL(), migrations.WithSchema(schema)); err != nil {
		t.Fatal(err)
	}
	admin, err := lockadmin.New(t.Context(), db.Pool(t), lockadmin.WithSchema(schema))
	if err != nil {
		t.Fatal(err)
	}
	s := stageOf(t, admin, asAlice()...)
	name := pgx.Identifier{schema}.Sanitize()
	db.Look(t, func(conn *pgx.Conn) {
		take := "SELECT " + name + ".acquire_lease('nightly', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')"
		if _, err := conn.Exec(t.Context(), take); err != nil {
			t.Fatal(err)
		}
	})
	p := open(t, s.home, "#/lock?name=nightly", 390, 844)
	p.text("#place", `schema <b>my\u202e locks`)
	p.openDialog()
	p.text("dialog .facts", `Schema<b>my\u202e locks`)
	p.until(`document.title.includes(', schema <b>my\\u202e locks – ')`)
	if n := eval[int](p, "document.querySelectorAll('#place b, dialog b').length"); n != 0 {
		t.Errorf("a text has become %d elements", n)
	}
}
