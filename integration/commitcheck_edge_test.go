package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// edgeLog makes the database keep, for every fenced transaction that commits, when its check began and ended: triggers
// that are named to run before and after fence_commit. The second one stays a while, so that much happens between the
// check and the commit.
const edgeLog = `
	CREATE TABLE edge (token bigint PRIMARY KEY, name text, expires_at timestamptz, before_check timestamptz, after_check timestamptz);
	CREATE FUNCTION before_check() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO edge SELECT NEW.last_token, NEW.lock_name, l.expires_at, clock_timestamp(), NULL
			FROM pglock.locks l WHERE l.name = NEW.lock_name AND l.token = NEW.last_token;
		RETURN NULL;
	END $$;
	CREATE FUNCTION after_check() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE edge SET after_check = clock_timestamp() WHERE token = NEW.last_token;
		PERFORM pg_sleep(random() * 0.004);
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER a_before_check AFTER INSERT OR UPDATE ON pglock.fences DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION before_check();
	CREATE CONSTRAINT TRIGGER z_after_check AFTER INSERT OR UPDATE ON pglock.fences DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION after_check();`

// edgeWriter takes a lock that others want too, again and again, and sends the COMMIT of its one fenced write as close
// to the end of the lease as the server's clock lets it. It never releases.
func edgeWriter(ctx context.Context, p *peer, name string, saw func(token, last int64)) (refused int, err error) {
	background := context.Background() // a step that has begun is ended
	for ctx.Err() == nil {
		g, err := p.acquire(background, name, uuid.New(), 100*time.Millisecond, false)
		if state(err) == "55P03" { // the first use of the name was waited for, for too long
			continue
		} else if err != nil {
			return refused, err
		}
		if !g.granted { // come back a moment before the end, to be there when it comes
			if wait := g.remaining - 2*time.Millisecond; wait > 0 {
				_, err = p.Exec(background, `SELECT pg_sleep($1)`, wait.Seconds())
			}
			if err != nil {
				return refused, err
			}
			continue
		}
		// What was committed under the leases before must be seen by now.
		var last int64
		if err := p.QueryRow(background, `SELECT coalesce(max(token), 0) FROM edge WHERE name = $1`,
			name).Scan(&last); err != nil {
			return refused, err
		}
		saw(g.token, last)
		// One message, so that the limits are lifted at once: the check is to refuse, not they.
		_, err = p.PgConn().Exec(background,
			fmt.Sprintf(`BEGIN; SELECT FROM pglock.fence('%s', %d, '%s'); SELECT set_config(name, '0', true)
			FROM pg_settings WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`,
				name, g.token, g.id)).ReadAll()
		if err == nil {
			aim := -0.003 + 0.004*rand.Float64() // seconds from the end of the lease
			_, err = p.PgConn().Exec(background,
				fmt.Sprintf(`SELECT pg_sleep(extract(epoch FROM l.expires_at - clock_timestamp()) + %f)
				FROM pglock.locks l WHERE l.name = '%s' AND l.token = %d; COMMIT`, aim, name, g.token)).ReadAll()
		}
		switch state(err) {
		case "":
			if err != nil {
				return refused, err
			}
		// the last two: the holder before was at the fence for too long
		case "LK001", "LK002", "LK003", "55P03", "57014":
			refused++
			_, err = p.Exec(background, `ROLLBACK`)
			if err != nil {
				return refused, err
			}
		default:
			return refused, err
		}
	}
	return refused, nil
}

// COMMITs in the last moments of a lease, while others wait for it. What was committed was checked before the lease's
// end, and the next grant came after the commit and saw it, even if the lease ended between the check and the commit.
func TestI4_A5_CommitAtTheVeryEndOfTheLease(t *testing.T) {
	t.Parallel()
	const locks, writers, chaos = 5, 2, 6 * time.Second
	settings := map[string]string{"track_commit_timestamp": "on"}
	for name, value := range slowDisk {
		settings[name] = value
	}
	server := migrated(t, settings)
	look := newPeer(t, server.URL())
	look.exec(t, edgeLog)
	logGrants(t, look)
	ctx := underLoad(t, chaos, newPeer(t, server.URL()),
		`SELECT count(*) FILTER (WHERE expires_at - before_check < interval '2 ms') >= 10
		AND count(*) FILTER (WHERE pg_xact_commit_timestamp(xmin) > expires_at) >= 10 FROM edge`)
	var mu sync.Mutex
	var tokens, lasts []int64 // of each grant: its token, and the last token whose write its holder saw
	refused := 0
	wg := pgtest.Group(t)
	for i := range locks * writers {
		p := newPeer(t, server.URL())
		wg.Go(func() {
			n, err := edgeWriter(ctx, p, fmt.Sprint("lock", i%locks), func(token, last int64) {
				mu.Lock()
				defer mu.Unlock()
				tokens, lasts = append(tokens, token), append(lasts, last)
			})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			refused += n
		})
	}
	wg.Wait()
	checkGrants(t, look)
	wantCount(t, look, 0, "I4: %d transactions were committed although the check began after the end of their lease",
		`SELECT count(*) FROM edge WHERE before_check >= expires_at`)
	wantCount(t, look, 0, "I4: %d transactions were committed without a check",
		`SELECT count(*) FROM edge WHERE after_check IS NULL`)
	const next = `FROM edge e CROSS JOIN LATERAL (SELECT g.granted_at FROM grant_log g WHERE g.name = e.name AND g.new_token > e.token
		ORDER BY g.new_token LIMIT 1) g WHERE g.granted_at <= pg_xact_commit_timestamp(e.xmin)`
	wantCount(t, look, 0, "I4: %d grants came before the commit of the holder before", `SELECT count(*) `+next)
	wantCount(t, look, 0, "I4: %d writes of holders before were not seen by a holder after its grant",
		`SELECT count(*) FROM unnest($1::bigint[], $2::bigint[]) AS s (token, last)
		JOIN (SELECT DISTINCT name, new_token FROM grant_log) g ON g.new_token = s.token
		JOIN edge e ON e.name = g.name AND e.token > s.last AND e.token < s.token`, tokens, lasts)
	committed := one[int](t, look, `SELECT count(*) FROM edge`)
	atTheEdge := one[int](t, look, `SELECT count(*) FROM edge WHERE expires_at - before_check < interval '2 ms'`)
	after := one[int](t, look, `SELECT count(*) FROM edge WHERE pg_xact_commit_timestamp(xmin) > expires_at`)
	t.Logf("%d committed, %d of them were checked in the last 2 ms of their lease, and %d committed after it; %d "+
		"refused",
		committed, atTheEdge, after, refused)
	if refused == 0 {
		t.Error("nothing was refused, which shows nothing")
	}
}
