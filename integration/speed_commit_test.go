package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// noteCommits makes the database note, inside COMMIT, with which synchronous_commit each transaction commits that has granted
// a lock, ended a lease, or written a ticket.
func noteCommits(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `
		CREATE TABLE public.commits (xact xid8, what text, setting text);
		CREATE FUNCTION public.note_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE what text := 'ticket';
		BEGIN
			IF TG_TABLE_NAME = 'locks' THEN
				what := CASE WHEN NEW.expires_at = '-infinity' AND TG_OP = 'UPDATE' THEN 'release'
					WHEN NEW.expires_at > '-infinity' AND (OLD IS NULL OR OLD.token <> NEW.token) THEN 'grant' END;
			END IF;
			IF what IS NOT NULL THEN
				INSERT INTO public.commits VALUES (pg_current_xact_id(), what, current_setting('synchronous_commit'));
			END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT OR UPDATE ON pglock.locks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note_commit();
		CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT ON pglock.waiters DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note_commit()`)
}

// Every transaction of the library that grants a lock commits durably, whatever else travels in it; those that do nothing but
// release, or queue, do not wait for the disk.
func TestI12_I24_WhatTravelsTogetherCommitsAsItsMembersNeed(t *testing.T) {
	for _, setting := range []string{"on", "off"} {
		t.Run("by default "+setting, func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			noteCommits(t, look)
			var wg sync.WaitGroup
			for m := range 2 {
				c := newClient(t, db.Pool(t, maxConnections(4), withDefault("synchronous_commit", setting)))
				for n := range 24 {
					wg.Go(func() {
						for round := range 12 {
							name, opts := fmt.Sprint("own ", n, " of ", m), []pglock.AcquireOption{pglock.WithMaxWait(patience)}
							if n%3 > 0 {
								name = fmt.Sprint("shared ", (n+round)%4)
							}
							if n%2 == 0 {
								opts = append(opts, pglock.WithMetadata([]byte(`{"of": "a test"}`)))
							}
							if err := c.Do(t.Context(), name, func(context.Context, *pglock.Lease) error { return nil }, opts...); err != nil && !errors.Is(err, pglock.ErrLost) {
								t.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
			eventually(t, "every lock to be released", func() bool {
				return one[int](t, look, `SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`) == 0
			})
			const kinds = `SELECT count(*) FROM (SELECT xact, bool_or(what = 'grant') AS granted, bool_or(what = 'ticket') AS queued, max(setting) AS setting,
				count(*) FILTER (WHERE what = 'grant') AS grants FROM public.commits GROUP BY xact) c WHERE `
			if n := one[int](t, look, kinds+`granted AND setting <> 'on'`); n != 0 {
				t.Errorf("I12: %d transactions have granted locks and do not wait for the disk", n)
			}
			if n := one[int](t, look, kinds+`NOT granted AND setting <> 'off'`); n != 0 {
				t.Errorf("I24: %d transactions have granted nothing and wait for the disk", n)
			}
			for what, where := range map[string]string{"several grants": `grants > 1`, "a grant beside a ticket": `granted AND queued`, "tickets alone": `queued AND NOT granted`} {
				if n := one[int](t, look, kinds+where); n == 0 {
					t.Logf("no transaction has had %s", what)
				}
			}
		})
	}
}

// The same grant ID in the hands of a caller that has it from an answer that was lost is granted once, by whichever way it
// asks again.
func TestI6_AGrantOfTheShortWaysIsAnsweredAgain(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	for way := range shortGrants {
		freed(t, p, way)
		g := p.mustShort(t, way, way)
		for range 2 {
			again, err := p.acquire(t.Context(), way, g.id, time.Minute, true)
			if err != nil || !again.granted || again.token != g.token {
				t.Errorf("I6: %s: %+v again: %+v, %v", way, g, again, err)
			}
		}
		if again, err := p.shortGrant(t.Context(), way, way, g.id); err != nil || again.granted && again.token != g.token {
			t.Errorf("I6: %s: %+v in the same way again: %+v, %v", way, g, again, err)
		}
	}
}
