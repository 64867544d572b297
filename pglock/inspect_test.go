package pglock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func TestRefusedCallTellsWhoHoldsTheLock(t *testing.T) {
	db := pgtest.Parallel(t)
	a := startClient(t, db.Pool(t), pglock.WithDefaultHolder("client a"))
	b := startClient(t, db.Pool(t))
	l := mustAcquire(t, a, "report", pglock.WithTTL(time.Minute))
	_, err := b.TryAcquire(t.Context(), "report")
	var held *pglock.HeldError
	if !errors.Is(err, pglock.ErrHeld) || !errors.As(err, &held) {
		t.Fatalf("%v, want ErrHeld", err)
	}
	if held.Lock != "report" || held.Holder != "client a" || held.Token != l.Token() {
		t.Errorf("%+v, want lock report, holder client a, token %d", held, l.Token())
	}
	if left := time.Until(held.ExpiresAt); left < 30*time.Second || left > 90*time.Second ||
		held.ExpiresAt.Location() != time.UTC {
		t.Errorf("expires at %v, want in about a minute, in UTC", held.ExpiresAt)
	}
	for _, s := range []string{`"report"`, `"client a"`, fmt.Sprint(l.Token())} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %s", err, s)
		}
	}
	grant := l.Export()
	if grant.Lock != "report" || grant.Token != l.Token() || grant.Resource != "report" || grant.Schema != "pglock" ||
		grant.ID == uuid.Nil {
		t.Errorf("%+v", grant)
	}
	var logged strings.Builder
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("acquired", "grant", grant)
	for _, text := range []string{err.Error(), l.String(), fmt.Sprint(grant), fmt.Sprintf("%+v %#v", grant, grant),
		logged.String()} {
		if strings.Contains(text, grant.ID.String()) {
			t.Errorf("a grant ID is printed: %s", text)
		}
	}
	if _, err := b.TryAcquire(t.Context(), "other"); err != nil {
		t.Errorf("another lock: %v", err)
	}
}

// Of a lock that nobody holds and that is not free, the refusal says nothing but what is true of each cause.
func TestRefusedCallDoesNotInventAHolder(t *testing.T) {
	db := pgtest.Parallel(t)
	c, conn := startClient(t, db.Pool(t)), db.Conn(t)
	must.Do(t, mustAcquire(t, c, "report").Release(t.Context()))
	for cause, sql := range map[string]string{
		"a watch": "SELECT FROM pglock.watch('report', '1 min')",
		"a request": "SELECT FROM pglock.acquire_lease('report', gen_random_uuid(), " +
			"gen_random_uuid(), 'x', '1 min')",
		"somebody who repairs it":  "SELECT FROM pglock.locks WHERE name = 'report' FOR UPDATE",
		"the last holder's COMMIT": "SELECT FROM pglock.locks WHERE name = 'report' FOR KEY SHARE",
	} {
		execute(t, conn, "BEGIN")
		execute(t, conn, sql)
		execute(t, conn, "SET LOCAL idle_in_transaction_session_timeout = 0")
		_, err := c.TryAcquire(t.Context(), "report")
		execute(t, conn, "ROLLBACK")
		var held *pglock.HeldError
		if !errors.As(err, &held) || held.Holder != "" || held.Token != 0 ||
			err.Error() != `pglock: lock "report" has no holder and is not free: a waiter is next, or a transaction has locked its row, or (for a subtree) is granting another lock, or only the server still has a lease of the same owner` {
			t.Errorf("%s: %v", cause, err)
		}
	}
	mustAcquire(t, c, "report")
}

func TestClientHoldsItsOwnLockOnlyOnce(t *testing.T) {
	t.Parallel()
	c := startClient(t, pgtest.Database(t).Pool(t))
	mustAcquire(t, c, "report")
	if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, pglock.ErrHeld) {
		t.Errorf("%v, want ErrHeld", err)
	}
}

func TestReleasedLockIsGrantedAgainWithAGreaterToken(t *testing.T) {
	db := pgtest.Parallel(t)
	clients := []*pglock.Client{startClient(t, db.Pool(t)), startClient(t, db.Pool(t))}
	var last pglock.Token
	for i := range 20 {
		l := mustAcquire(t, clients[i%2], "report")
		if l.Token() <= last {
			t.Errorf("token %d after %d", l.Token(), last)
		}
		last = l.Token()
		must.Do(t, l.Release(t.Context()))
	}
}

func TestHolderIsTheClientsLabelUnlessTheLeaseHasItsOwn(t *testing.T) {
	db := pgtest.Parallel(t)
	c, admin := startClient(t, db.Pool(t), pglock.WithDefaultHolder("client")), newAdmin(t, db.Pool(t))
	host := must.Get(os.Hostname())(t)
	for name, tc := range map[string]struct {
		lease *pglock.Lease
		want  string
	}{
		"default": {mustAcquire(t, startClient(t, db.Pool(t)), "default"), fmt.Sprintf("[%d]", os.Getpid())},
		"host":    {mustAcquire(t, startClient(t, db.Pool(t)), "host"), host},
		"client":  {mustAcquire(t, c, "client"), "client"},
		"lease":   {mustAcquire(t, c, "lease", pglock.WithHolder("lease")), "lease"},
	} {
		info, err := admin.Get(t.Context(), name)
		if err != nil || !strings.Contains(info.Holder, tc.want) || tc.lease.Holder() != info.Holder {
			t.Errorf("%s: holder %q and %q, %v; want %q", name, info.Holder, tc.lease.Holder(), err, tc.want)
		}
	}
}

func TestGetShowsALockThroughItsLife(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	c, admin := startClient(t, pool, pglock.WithDefaultHolder("h")), newAdmin(t, pool)
	l := mustAcquire(t, c, "report", pglock.WithTTL(time.Minute))
	info := must.Get(admin.Get(t.Context(), "report"))(t)
	if !info.Held || info.Name != "report" || info.Holder != "h" || info.Token != l.Token() ||
		info.TTL != time.Minute || info.Session == "" ||
		info.Remaining < 50*time.Second || info.Remaining > time.Minute || !info.EndedAt.IsZero() ||
		info.Metadata != nil ||
		info.ExpiresAt.Sub(info.RenewedAt).Round(time.Second) != time.Minute || info.AcquiredAt.After(info.RenewedAt) {
		t.Errorf("while held: %+v", info)
	}
	must.Do(t, hooks.Of(l).Renew(t.Context()))
	renewed, err := admin.Get(t.Context(), "report")
	if err != nil || !renewed.RenewedAt.After(info.RenewedAt) || !renewed.AcquiredAt.Equal(info.AcquiredAt) ||
		renewed.Token != info.Token {
		t.Errorf("after a renewal: %+v, %v", renewed, err)
	}
	must.Do(t, l.Release(t.Context()))
	free, err := admin.Get(t.Context(), "report")
	if err != nil || free.Held || free.EndedAt.IsZero() || !free.ExpiresAt.IsZero() || free.Remaining != 0 ||
		free.Token != l.Token() {
		t.Errorf("after the release: %+v, %v", free, err)
	}
}

func TestLocksAreChosenByPrefixAndComeInByteOrderFromPageToPage(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	c, admin := startClient(t, pool), newAdmin(t, pool)
	for _, name := range []string{"a", "B", "job/1", "job/10", "job/2", "job%", "job_", "ä"} {
		mustAcquire(t, c, name)
	}
	must.Do(t, mustAcquire(t, c, "job/free").Release(t.Context()))
	for _, tc := range []struct {
		q    lockadmin.LocksQuery
		want []string
	}{
		{lockadmin.LocksQuery{}, []string{"B", "a", "job%", "job/1", "job/10", "job/2", "job_", "ä"}},
		{lockadmin.LocksQuery{Free: true, Prefix: "job/"},
			[]string{"job/1", "job/10", "job/2", "job/free"}},
		{lockadmin.LocksQuery{Prefix: "job/"}, []string{"job/1", "job/10", "job/2"}},
		{lockadmin.LocksQuery{Prefix: "job%"}, []string{"job%"}},
		{lockadmin.LocksQuery{Prefix: "job_"}, []string{"job_"}},
		{lockadmin.LocksQuery{Prefix: "nothing"}, nil},
	} {
		for size := 1; size < 10; size++ {
			tc.q.PageSize = size
			infos, err := lists.All(admin.Locks(t.Context(), tc.q))
			var got []string
			for _, i := range infos {
				got = append(got, i.Name)
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%d at a time: %q, %v; want %q", size, got, err, tc.want)
			}
		}
	}
}

func TestMetadataComesBackAsItWasGiven(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	c, admin := startClient(t, pool), newAdmin(t, pool)
	for i, raw := range []string{`null`, `true`, `"ü \" \\u0000"`, `{"a": [1, 2.5, {"b": null}]}`, `""`, `[]`,
		strings.Repeat(" ", 8190) + "12"} {
		name := fmt.Sprint(i)
		mustAcquire(t, c, name, pglock.WithMetadata(json.RawMessage(raw)))
		info, err := admin.Get(t.Context(), name)
		var got, want any
		if err == nil {
			err = errors.Join(json.Unmarshal(info.Metadata, &got), json.Unmarshal([]byte(raw), &want))
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s came back as %s, %v", raw, info.Metadata, err)
		}
	}
	l := mustAcquire(t, c, "again", pglock.WithMetadata(json.RawMessage(`1`)))
	must.Do(t, l.Release(t.Context()))
	mustAcquire(t, c, "again")
	if info, err := admin.Get(t.Context(), "again"); err != nil || info.Metadata != nil {
		t.Errorf("a lease without metadata shows that of the one before: %s, %v", info.Metadata, err)
	}
}

func TestCheckAndRenewFollowTheServer(t *testing.T) {
	db := pgtest.Parallel(t)
	c := startClient(t, db.Pool(t))
	l := mustAcquire(t, c, "report", pglock.WithTTL(time.Hour))
	left, err := l.Check(t.Context())
	if err != nil || left < 59*time.Minute || left > time.Hour {
		t.Errorf("Check = %v, %v; want an hour", left, err)
	}
	before := l.Deadline()
	if err := hooks.Of(l).Renew(t.Context()); err != nil || !l.Deadline().After(before) {
		t.Errorf("Renew = %v, deadline moved by %v", err, l.Deadline().Sub(before))
	}
	execute(t, db.Conn(t), "UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 s'")
	var lost *pglock.LostError
	if left, err := l.Check(t.Context()); left != 0 || !errors.As(err, &lost) || lost.Reason != pglock.ReasonExpired {
		t.Errorf("Check after the expiry = %v, %v", left, err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("Release after the expiry = %v, want ErrLost", err)
	}
}

func TestI10_BreakEndsALeaseForGoodAndIsNoted(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	operator := newAdmin(t, db.Pool(t))
	c := startClient(t, pool, pglock.WithDefaultHolder("h"))
	l := mustAcquire(t, c, "report", pglock.WithTTL(time.Hour))
	broken, err := operator.Break(t.Context(), "report", "host is gone",
		lockadmin.BreakOptions{Token: new(l.Token()), Actor: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	if broken.Name != "report" || broken.Holder != "h" || broken.Token != l.Token() || broken.NewToken <= l.Token() ||
		time.Until(broken.ExpiresAt) < 50*time.Minute {
		t.Errorf("%+v", broken)
	}
	if err := fencedstore.New(pool).Write(t.Context(), l, func(context.Context, pgx.Tx) error {
		return nil
	}); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("a fenced write of a broken lease: %v, want ErrLost", err)
	}
	var lost *pglock.LostError
	if err := hooks.Of(l).Renew(t.Context()); !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken {
		t.Errorf("Renew of a broken lease: %v", err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("Release of a broken lease: %v", err)
	}
	if next := mustAcquire(t, c, "report"); next.Token() <= broken.NewToken {
		t.Errorf("token %d after the break's %d", next.Token(), broken.NewToken)
	}
	events, err := lists.All(operator.History(t.Context(), lockadmin.HistoryQuery{Lock: "report"}))
	if err != nil || len(events) != 1 {
		t.Fatalf("%+v, %v; want the break", events, err)
	}
	e := events[0]
	if e.Kind != lockadmin.EventBreak || e.Lock != "report" || e.Token != l.Token() || e.NewToken != broken.NewToken ||
		e.Holder != "h" ||
		e.Actor != "ada" || e.Reason != "host is gone" || e.DBUser == "" || time.Since(e.At) > time.Minute {
		t.Errorf("%+v", e)
	}
}

func TestTakeoverOfAnExpiredLeaseIsNoted(t *testing.T) {
	db := pgtest.Parallel(t)
	c := startClient(t, db.Pool(t), pglock.WithDefaultHolder("h"))
	old := mustAcquire(t, c, "report", pglock.WithTTL(time.Hour))
	execute(t, db.Conn(t), "UPDATE pglock.locks SET expires_at = clock_timestamp()")
	next := mustAcquire(t, c, "report", pglock.WithHolder("next"))
	events, err := lists.All(newAdmin(t, db.Pool(t)).History(t.Context(), lockadmin.HistoryQuery{}))
	if err != nil || len(events) != 1 || events[0].Kind != lockadmin.EventTakeover || events[0].Token != old.Token() ||
		events[0].NewToken != next.Token() || events[0].Actor != "next" {
		t.Errorf("%+v, %v; want the takeover of token %d by %d", events, err, old.Token(), next.Token())
	}
	var lost *pglock.LostError
	if _, err := old.Check(t.Context()); !errors.As(err, &lost) || lost.Reason != pglock.ReasonTakenOver {
		t.Errorf("the old lease: %v, want taken over", err)
	}
}
