package integration

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// logOrder makes logs of the writes, of every version of every lock, and of the moment before each check inside COMMIT,
// each with its transaction; and a slot from which the order of those transactions' commits can be read. It is that of
// their commit records in the WAL: whoever waits for a row has its record after that of whom it waited for.
func logOrder(t *testing.T, look *peer) {
	t.Helper()
	logGrants(t, look)
	look.exec(t, `
		ALTER TABLE public.grant_log ADD COLUMN xact xid8 DEFAULT pg_current_xact_id();
		CREATE TABLE public.writes (
			id bigint, account text, resource text, delta bigint, lock text, token bigint, grant_id uuid, again boolean,
			xact xid8 DEFAULT pg_current_xact_id(), PRIMARY KEY (id, account));
		CREATE TABLE public.stamps (resource text, token bigint, grant_id uuid, xact xid8, at timestamptz);
		CREATE FUNCTION public.stamp() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.fenced_xact = pg_current_xact_id() THEN
				INSERT INTO public.stamps VALUES (NEW.resource, NEW.last_token, NEW.grant_id, pg_current_xact_id(), clock_timestamp());
			END IF;
			RETURN NULL;
		END $$;
		-- Of the triggers of one event the first in the alphabet runs first: the check comes after this.
		CREATE CONSTRAINT TRIGGER a_stamp AFTER INSERT OR UPDATE ON pglock.fences
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.stamp();
		ALTER TABLE pglock.fences ENABLE ALWAYS TRIGGER a_stamp;
		CREATE PUBLICATION commits FOR TABLE public.grant_log, public.writes;`)
	look.exec(t, `SELECT pg_create_logical_replication_slot('commits_of_' || current_database(), 'pgoutput')`)
}

// commits reads the order: the place of each transaction by its ID.
func commits(t *testing.T, look *peer) map[uint32]int64 {
	t.Helper()
	// flushes what was committed before; decoding ends there
	look.exec(t, `SELECT pg_logical_emit_message(true, 'end', '')`)
	rows, _ := look.Query(t.Context(),
		`SELECT xid, n FROM pg_logical_slot_get_binary_changes('commits_of_' || current_database(), NULL, NULL,
		'proto_version', '1', 'publication_names', 'commits') WITH ORDINALITY AS c (lsn, xid, data, n) ORDER BY n`)
	order := make(map[uint32]int64)
	var xid uint32
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&xid, &n}, func() error {
		if order[xid] == 0 {
			order[xid] = n
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	look.exec(t, `SELECT pg_drop_replication_slot('commits_of_' || current_database())`)
	return order
}

// step is one committed change: a version of a lock, or a write.
type step struct {
	Xid      uint32
	Seq      int64 // within a transaction
	Write    int64 // 0: a version of the lock
	Resource string
	Lock     string
	Token    int64
	GrantID  uuid.UUID
	Again    bool
	// a version: until when the lease lasts, nil when it has ended; a write: before its last check, nil without one
	At *time.Time
}

// checkOrder goes through all commits in their order. Each write must be under the lease that its lock had then, and
// that one must not have ended before the check (I4, I10); the tokens of a resource must ascend (I3); each writer's
// answer must be true, and no update may be lost.
func (a *arena) checkOrder(t *testing.T) {
	t.Helper()
	look := newPeer(t, a.url)
	order := commits(t, look)
	rows, _ := look.Query(t.Context(), `
		SELECT xact::xid AS xid, n AS seq, 0 AS write, '' AS resource, name AS lock, new_token AS token, grant_id AS grantid, false AS again,
			nullif(new_expires, '-infinity') AS at
		FROM grant_log
		UNION ALL
		SELECT xact::xid, 0, id, resource, lock, token, grant_id, again,
			(SELECT max(s.at) FROM stamps s WHERE s.xact = w.xact AND s.resource = w.resource AND s.token = w.token AND s.grant_id = w.grant_id)
		FROM writes w`)
	steps := must.Get(pgx.CollectRows(rows, pgx.RowToStructByName[step]))(t)
	for _, s := range steps {
		if order[s.Xid] == 0 {
			t.Fatalf("transaction %d has no place in the order of commits", s.Xid)
		}
	}
	slices.SortFunc(steps, func(x, y step) int {
		return cmp.Or(cmp.Compare(order[x.Xid], order[y.Xid]), cmp.Compare(x.Seq, y.Seq))
	})
	locks, last := make(map[string]step), make(map[string]step)
	committed := make(map[int64]bool)
	versions, complaints := 0, 0
	complain := func(format string, args ...any) {
		if complaints++; complaints <= 20 {
			t.Errorf(format, args...)
		}
	}
	for _, s := range steps {
		if s.Write == 0 {
			versions++
			locks[s.Lock] = s
			continue
		}
		committed[s.Write] = true
		lease := locks[s.Lock]
		switch {
		case lease.Token != s.Token || lease.GrantID != s.GrantID:
			complain("I4: write %d with token %d was committed after token %d had ended its lease of lock %s", s.Write,
				s.Token, lease.Token, s.Lock)
		case lease.At == nil:
			complain("I4, I10: write %d with token %d was committed after its lease had been ended", s.Write, s.Token)
		case s.At == nil:
			complain("I3: write %d with token %d was committed without the fence of %s", s.Write, s.Token, s.Resource)
		case !lease.At.After(*s.At):
			complain("I4: write %d with token %d was committed, and its check began %v after its lease had ended",
				s.Write, s.Token, s.At.Sub(*lease.At))
		}
		before := last[s.Resource]
		if s.Token < before.Token || s.Token == before.Token && (!s.Again || s.GrantID != before.GrantID) {
			complain("I3: write %d passed the fence of %s with token %d after write %d with token %d", s.Write,
				s.Resource, s.Token, before.Write, before.Token)
		}
		last[s.Resource] = s
	}
	for id, told := range a.outcomes {
		if told == "accepted" && !committed[id] || told == "refused" && committed[id] {
			complain("I17: write %d was %s, as its writer was told; committed: %v", id, told, committed[id])
		}
	}
	if lost := one[string](t, look, `SELECT coalesce(string_agg(format('%s: %s', key, off), ', '), '') FROM (
			SELECT key, a.balance - coalesce(sum(w.delta), 0) AS off FROM account a FULL JOIN writes w ON w.account = a.key GROUP BY key, a.balance) b
		WHERE off <> 0 OR key IS NULL`); lost != "" {
		complain("I3: updates were lost: balances are off by %s", lost)
	}
	t.Logf("%d transactions in order, %d versions of locks, %d writes", len(order), versions, len(committed))
}
