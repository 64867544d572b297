package browser

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// rows waits for so many entries of the history.
func (p *tab) rows(n int) {
	p.t.Helper()
	p.until(fmt.Sprintf("document.querySelectorAll('[aria-label=History] tbody tr').length === %d", n))
}

// longHistory gives the lock nightly 500 entries, and has app-1 hold it. change makes an entry more.
func (s *stage) longHistory() (change func(holder string)) {
	s.t.Helper()
	s.sql(`INSERT INTO pglock.events (at, kind, lock_name, token, holder, granted_at, ended_at)
		SELECT now() - i * interval '1 min', 'release', 'nightly', 1000 - i, 'app-' || i,
			now() - (i + 1) * interval '1 min', now() - i * interval '1 min' FROM generate_series(500, 1, -1) i`)
	s.holdForNobody("app-1", "nightly")
	return func(holder string) {
		if _, err := s.admin.Break(s.t.Context(), "nightly", "its host is gone", lockadmin.BreakOptions{}); err != nil {
			s.t.Error(err)
		}
		s.holdForNobody(holder, "nightly")
	}
}

// A lock whose holders change all the time must not make a page that nobody touches longer and longer.
func TestTheHistoryStaysAsLongAsSomebodyAskedForIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	change := s.longHistory()
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.rows(200)
	const newest = "document.querySelector('[aria-label=History] tbody tr').textContent"
	for _, holder := range []string{"app-2", "app-3"} {
		was := eval[string](p, newest)
		change(holder)
		p.until(newest + " !== " + quote(was))
		p.text("[aria-label=History] tbody tr:first-child", "broken")
		p.rows(200)
		p.until("document.querySelector('.buttons.left button').checkVisibility()")
	}
	p.click(".buttons.left button") // nothing is missing between
	p.rows(400)
}

// A page over a user who may not read the history says so once, and asks again when the lock changes.
func TestAHistoryThatNobodyMayReadIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	chromium(t)
	db := pgtest.Database(t)
	user := "pglock_reader_" + db.Name()
	db.Look(t, func(conn *pgx.Conn) {
		sql := "CREATE ROLE " + pgx.Identifier{user}.Sanitize() + " LOGIN PASSWORD 'secret' IN ROLE pglock_user"
		must.Get(conn.Exec(t.Context(), sql))(t)
	})
	t.Cleanup(func() {
		db.Look(t, func(conn *pgx.Conn) {
			if _, err := conn.Exec(context.WithoutCancel(t.Context()),
				"DROP ROLE "+pgx.Identifier{user}.Sanitize()); err != nil {
				t.Error(err)
			}
		})
	})
	s := stageOn(t, db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = user, "secret" }))
	var asked atomic.Int64
	s.on(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/api/history") {
			asked.Add(1)
		}
	})
	lease := s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("403 (Forbidden)")
	p.text("[aria-label=History]", "The history cannot be read: The database user of this page needs the role")
	for n, holder := range []string{"app-2", "app-3", "app-4"} { // news of the lock, which is held as before
		s.queue(holder, "nightly")
		p.text(".sentence", fmt.Sprintf("%d request", n+1))
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the page has asked for the history %d times, want once", n)
	}
	must.Do(t, lease.Release(t.Context()))
	s.eventually(func() bool { return asked.Load() == 2 })
}

// A lock whose holders change all the time must not take away what somebody has asked for.
func TestOlderEntriesStayWhenTheLockChanges(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	change := s.longHistory()
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.rows(200)
	p.click(".buttons.left button")
	p.rows(400)
	change("app-2")
	p.text(".sentence", "app-2 has held it")
	p.text("[aria-label=History] tbody tr:first-child", "broken")
	p.rows(401)

	// While the request for older ones is under way.
	older, over := make(chan struct{}), make(chan struct{})
	s.on(func(r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "before=") {
			close(older)
			<-over
		}
	})
	p.click(".buttons.left button")
	<-older
	change("app-3")
	p.rows(402)
	close(over)
	p.rows(502)
	p.gone(".buttons.left button")
}

// Entries get their numbers before they are committed: one with a lower number may come after one with a higher.
func TestAnEntryThatIsCommittedLateIsShown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	again := func(holder string) {
		must.Get(s.admin.Break(t.Context(), "nightly", "its host is gone", lockadmin.BreakOptions{}))(t)
		s.holdForNobody(holder, "nightly")
	}
	s.holdForNobody("app-1", "nightly")
	late := must.Get(s.pool.Begin(t.Context()))(t)
	defer func() { _ = late.Rollback(t.Context()) }()
	must.Get(late.Exec(t.Context(), `INSERT INTO pglock.events (kind, lock_name, token, holder, granted_at, ended_at)
		VALUES ('release', 'nightly', 1, 'late', now() - interval '1 min', now())`))(t)
	again("app-2")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.rows(1)
	must.Do(t, late.Commit(t.Context()))
	again("app-3")
	p.text("[aria-label=History] tbody tr:first-child", "app-2") // who was broken last
	p.rows(3)
	p.text("[aria-label=History] tbody tr:last-child", "late")
}

// An explanation may fail where the rest is read. The words from before, and their absence, would say that all is well.
func TestThePageSaysThatNobodyCanExplainALock(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.until("document.querySelector('.verdict-text')?.checkVisibility()")
	s.sql("ALTER FUNCTION pglock.list_backends RENAME TO list_no_backends")
	p.text(".card", "Nobody can tell now whether anything is wrong.")
	p.gone(".verdict-text")
	p.text("#link", "live")
	s.sql("ALTER FUNCTION pglock.list_no_backends RENAME TO list_backends")
	p.until("document.querySelector('.verdict-text')?.checkVisibility()")
}
