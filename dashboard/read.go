package dashboard

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	readWithin   = 10 * time.Second // limits what one answer reads, and how long it waits for its turn
	readSoon     = time.Second      // what reads one row takes longer only if something is in its way
	waitersShown = 200
	fencesShown  = 200
	breaksAtOnce = 2
	pageRows     = 1000 // of a statement: metadata may be long

	// A page of a list ends before it has more of this, whatever its limit: metadata may be long.
	bytesShown = 8 << 20
)

// errBusy: too many reads are under way.
var errBusy = errors.New("dashboard: too many requests at once")

// inTurn runs f for a limited time, when there is room for it among those under way.
func inTurn(ctx context.Context, underWay chan struct{}, f func(context.Context) error) error {
	waits, end := context.WithTimeout(ctx, readWithin)
	defer end()
	select {
	case underWay <- struct{}{}:
	case <-waits.Done():
		return errBusy
	}
	defer func() { <-underWay }()
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	return f(ctx)
}

// readLocks reads one page of the list. In the order of names the holders of a lock stay together, so that may have
// more than the limit.
func (d *Dashboard) readLocks(ctx context.Context, q query) (v locksView, err error) {
	v.Locks = []lockView{}
	list := lockadmin.LocksQuery{Match: q.match, Free: q.free, Order: lockadmin.Order(q.order), After: q.after,
		PageSize: min(q.limit+1, pageRows)}
	if q.order != orders[0] { // there is one page, and an entry more tells whether it is all
		q.limit = min(q.limit, lockadmin.MaxPageSize-1)
		list.Limit = q.limit + 1
	}
	var infos []pglock.LockInfo
	err = inTurn(ctx, d.reads, func(ctx context.Context) error {
		all, err := d.admin.Overview(ctx, illShown)
		v.At, v.Ill = all.At, viewIll(all)
		if err != nil || v.Ill.closed() {
			return err
		}
		size := 0
		for i, err := range d.admin.Locks(ctx, list) {
			if err != nil {
				return err
			}
			size += len(i.Name) + len(i.Holder) + len(i.Metadata)
			full := len(v.Locks) >= q.limit || size > bytesShown && len(v.Locks) > 0
			if full && (q.order != orders[0] || i.Slot <= 1 || v.Locks[len(v.Locks)-1].Name != i.Name) {
				v.More = true
				break
			}
			if i.Held {
				v.At = lists.SeenAt(i)
			}
			v.Locks, infos = append(v.Locks, viewLock(i)), append(infos, i)
		}
		lives, err := d.admin.Lives(ctx, infos)
		for n, l := range lives {
			v.Locks[n].Life = l.Life
		}
		if err != nil {
			return err
		}
		return d.judge(ctx, &v, infos)
	})
	return v, err
}

// illShown is how many locks that are not well the list begins with.
const illShown = 20

// judge adds the verdicts of the list. It does not explain again what the overview has explained.
func (d *Dashboard) judge(ctx context.Context, v *locksView, infos []pglock.LockInfo) error {
	known := make(map[string]lockadmin.Summary)
	for _, s := range v.Ill.Locks {
		known[s.Lock] = s
	}
	rest := slices.DeleteFunc(slices.Clone(infos), func(i pglock.LockInfo) bool {
		_, is := known[i.Name]
		return is
	})
	verdicts, err := d.admin.Summaries(ctx, rest)
	for _, s := range verdicts {
		known[s.Lock] = s
	}
	for n := range v.Locks {
		l := &v.Locks[n]
		l.Verdict, l.Kind = known[l.Name].Severity, known[l.Name].Kind
	}
	return err
}

// readWhy asks what is wrong with a lock. nil: nobody can tell now.
func (d *Dashboard) readWhy(ctx context.Context, name string) (v *whyView) {
	err := inTurn(ctx, d.reads, func(ctx context.Context) error {
		e, err := d.admin.Explain(ctx, name)
		v = viewWhy(e, d.admin.Place().Schema)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			d.config.OnError(err)
		}
		return nil
	}
	return v
}

// readSessions asks for one more than it shows.
func (d *Dashboard) readSessions(ctx context.Context, q lockadmin.SessionsQuery) (v sessionsView, err error) {
	v = sessionsView{At: time.Now().UTC()}
	err = inTurn(ctx, d.reads, func(ctx context.Context) error {
		v.Sessions, v.More, err = lists.First(q.Limit-1, d.admin.Sessions(ctx, q))
		return err
	})
	return v, err
}

// readLock asks first who holds the lock. If that takes long somebody may have locked a whole table: readWhy gives up
// soon then, and says who.
func (d *Dashboard) readLock(ctx context.Context, name string) (v oneView, err error) {
	v = oneView{At: time.Now().UTC(), Holders: []lockView{}, Waiters: []waiterView{}, Fences: []fenceView{}}
	var infos []pglock.LockInfo
	err = inTurn(ctx, d.reads, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, readSoon)
		defer cancel()
		infos, err = d.admin.Holders(ctx, name)
		return err
	})
	if err != nil && !late(err) {
		return v, err
	}
	switch v.Why = d.readWhy(ctx, name); {
	case v.Why != nil && v.Why.State == lockadmin.LockHidden:
		return v, nil
	case v.Why == nil && err != nil:
		return v, err
	}
	err = inTurn(ctx, d.reads, func(ctx context.Context) (err error) {
		if infos == nil {
			if infos, err = d.admin.Holders(ctx, name); err != nil {
				return err
			}
		}
		v.At, v.Lock = time.Now().UTC(), new(viewLock(infos[0]))
		for _, i := range infos {
			if i.Held {
				v.At = lists.SeenAt(i)
				v.Holders = append(v.Holders, viewLock(i))
			}
		}
		waiters := d.admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: name, Limit: waitersShown + 1})
		if v.Waiters, v.MoreWaiters, err = first(waitersShown, waiters, viewWaiter); err != nil {
			return err
		}
		if v.MoreWaiters {
			v.AllWaiters = inSchema("pglock-admin waiters "+shown.Name(name), d.admin.Place().Schema)
		}
		fences := d.admin.Fences(ctx, lockadmin.FencesQuery{Lock: name, Limit: fencesShown + 1})
		v.Fences, v.MoreFences, err = first(fencesShown, fences, viewFence)
		return err
	})
	return v, err
}

// readHistory reads what happened to one lock, or to all, newest first, and what the history has at all.
func (d *Dashboard) readHistory(ctx context.Context, name string, before int64, limit int) (v historyView, err error) {
	v = historyView{At: time.Now().UTC()}
	q := lockadmin.HistoryQuery{Lock: name, Before: before, Limit: limit + 1, PageSize: min(limit+1, pageRows)}
	err = inTurn(ctx, d.reads, func(ctx context.Context) error {
		if v.Events, v.More, err = first(limit, d.admin.History(ctx, q), viewEvent); err != nil {
			return err
		}
		settings, err := d.admin.HistorySettings(ctx)
		v.Level, v.Keep = settings.Level, settings.Keep.Milliseconds()
		if v.Level != lockadmin.HistoryAll {
			v.Record = inSchema("pglock-admin record --level all", d.admin.Place().Schema)
		}
		return err
	})
	return v, err
}

// first reads a list up to a limit, and reports whether there is more.
func first[T, V any](limit int, list iter.Seq2[T, error], view func(T) V) (some []V, more bool, err error) {
	all, more, err := lists.First(limit, list)
	some = make([]V, len(all))
	for i, one := range all {
		some[i] = view(one)
	}
	return some, more, err
}

// breakLock ends a lease. It goes on when the client leaves: nobody could see what became of it.
func (d *Dashboard) breakLock(ctx context.Context, r breakRequest, token pglock.Token,
	actor string) (broken lockadmin.Broken, err error) {
	err = inTurn(context.WithoutCancel(ctx), d.breaks, func(ctx context.Context) error {
		if err := d.isSeen(ctx, r, token); err != nil {
			return err
		}
		broken, err = d.admin.Break(ctx, r.Name, r.Reason, lockadmin.BreakOptions{Token: new(token), Actor: actor})
		return err
	})
	return broken, err
}

// isSeen refuses a lease that has the name and the token of the one that the caller sees, but is another one. What has
// no such token the break refuses.
func (d *Dashboard) isSeen(ctx context.Context, r breakRequest, token pglock.Token) error {
	if r.AcquiredAt.IsZero() {
		return nil
	}
	infos, err := d.admin.Holders(ctx, r.Name)
	if errors.Is(err, lockadmin.ErrNotFound) {
		return nil
	}
	for _, i := range infos {
		if i.Token == token && !i.AcquiredAt.Equal(r.AcquiredAt) {
			return errOtherLease
		}
	}
	return err
}
