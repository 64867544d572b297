package metrics

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/pglock-dev/pglock/lockadmin"
)

// Collector is a prometheus.Collector of the numbers of one schema. It is safe for concurrent use. Simultaneous
// scrapes share one look at the database.
type Collector struct {
	admin  *lockadmin.Admin
	config Config
	look   singleflight.Group
	tally  tally // only the caller inside look uses it, and what follows
	found  findings
	token  int64 // the last number that was drawn
	drawn  int64 // by how much it rose
}

// sample is what one look at the database found.
type sample struct {
	up       bool
	took     time.Duration
	numbers  lockadmin.Statistics
	tokens   int64
	events   map[lockadmin.EventKind]float64
	findings findings
}

type findings struct {
	at        time.Time // the last diagnosis; zero: none yet
	known     bool      // it has succeeded
	attention int
}

// NewCollector makes a Collector over an Admin, which stays the caller's.
//
// Errors: pglock.ErrInvalid.
func NewCollector(admin *lockadmin.Admin, c Config) (*Collector, error) {
	if err := c.check(admin); err != nil {
		return nil, err
	}
	return &Collector{admin: admin, config: c, tally: newTally(), token: math.MaxInt64}, nil
}

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pglock_"+name, help, labels, nil)
}

// What Collect exports. docs/alerts.md and deploy/ use these names.
var (
	up = gauge("up", "1 if the database answered this scrape, else 0. Then there are no other numbers of the "+
		"database, unless transactions are blocked: then those of these.")
	took      = gauge("scrape_duration_seconds", "How long the database took to answer this scrape.")
	locksHeld = gauge("locks_held", "Locks that somebody holds.")
	sessions  = gauge("sessions", "Clients that wait, or have lately waited, and are alive.")
	dead      = gauge("dead_holders", "Clients that hold leases and give no sign of life.")
	tokens    = gauge("tokens_total", "Fencing tokens that were drawn since this process began: at least one for each "+
		"grant and each break.")
	events   = gauge("events_total", "Events of this kind since this process began; overlap at level all.", "kind")
	blocked  = gauge("blocked_transactions", "Transactions that use pglock's tables and wait for other transactions.")
	waited   = gauge("blocked_transaction_seconds", "How long the first of the blocked transactions has waited.")
	blockers = gauge("blocking_transactions", "Transactions for which the blocked ones wait; prepared transactions "+
		"count as one.")
	blocking = gauge("blocking_transaction_seconds", "Age of the oldest blocking transaction, 0 if the owner of the "+
		"schema may not see it; or of a prepared one that keeps anything of pglock locked.")
	queue     = gauge("notification_queue_ratio", "How full the server's queue of notifications is, from 0 to 1.")
	attention = gauge("doctor_findings_attention", "Findings of pglock-admin doctor that need attention, at most a "+
		"minute old; not there while the diagnosis fails.")

	all = series{
		gauge("leases", "Leases that are held."),
		gauge("leases_ending", "Leases with less than a third of their TTL left: their holders do not renew them."),
		gauge("oldest_lease_seconds", "Age of the oldest lease."),
		gauge("waiters", "Live requests in queues."),
		gauge("waiters_dead", "Requests of clients that give no sign of life: the queue passes over them."),
		gauge("longest_wait_seconds", "How long the live request that is queued for longest has waited."),
	}
	single = series{
		gauge("lock_leases", "Leases of this lock; without a name of all locks that have no series.", "lock"),
		gauge("lock_leases_ending", "Leases of this lock with less than a third of their TTL left.", "lock"),
		gauge("lock_oldest_lease_seconds", "Age of the oldest lease of this lock.", "lock"),
		gauge("lock_waiters", "Live requests in the queue of this lock.", "lock"),
		gauge("lock_waiters_dead", "Requests for this lock of clients that give no sign of life.", "lock"),
		gauge("lock_longest_wait_seconds", "How long the live request that is queued for longest has waited for this "+
			"lock.", "lock"),
	}
)

// series are the numbers of a lockadmin.LockStatistics.
type series struct{ leases, ending, oldest, waiters, dead, longest *prometheus.Desc }

func (d series) send(send func(*prometheus.Desc, float64, ...string), s lockadmin.LockStatistics, labels ...string) {
	send(d.leases, float64(s.Leases), labels...)
	send(d.ending, float64(s.Ending), labels...)
	send(d.oldest, s.HeldFor.Seconds(), labels...)
	send(d.waiters, float64(s.Waiters), labels...)
	send(d.dead, float64(s.DeadWaiters), labels...)
	send(d.longest, s.WaitingFor.Seconds(), labels...)
}

// Describe sends what Collect can send.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	send := func(d *prometheus.Desc, _ prometheus.ValueType, _ float64, _ ...string) { to <- d }
	c.export(send, sample{up: true, events: map[lockadmin.EventKind]float64{"": 0}, findings: findings{known: true}})
}

// Collect looks at the database, and sends what it found.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	found, _, _ := c.look.Do("", func() (any, error) { return c.sample(), nil })
	c.export(func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}, found.(sample))
}

// export sends the numbers of a sample.
func (c *Collector) export(number func(*prometheus.Desc, prometheus.ValueType, float64, ...string), s sample) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { number(d, prometheus.GaugeValue, v, labels...) }
	gauge(took, s.took.Seconds())
	n := s.numbers
	if s.up || n.Blocked > 0 {
		gauge(blocked, float64(n.Blocked))
		gauge(waited, n.BlockedFor.Seconds())
		gauge(blockers, float64(n.Blockers))
		gauge(blocking, n.BlockingFor.Seconds())
	}
	if !s.up {
		gauge(up, 0)
		return
	}
	gauge(up, 1)
	gauge(locksHeld, float64(n.Locks))
	gauge(sessions, float64(n.Sessions))
	gauge(dead, float64(n.DeadHolders))
	number(tokens, prometheus.CounterValue, float64(s.tokens))
	for kind, count := range s.events {
		number(events, prometheus.CounterValue, count, string(kind))
	}
	gauge(queue, n.NotificationQueue)
	if s.findings.known {
		gauge(attention, float64(s.findings.attention))
	}
	all.send(gauge, n.All)
	if c.config.Top == 0 {
		return
	}
	for _, lock := range n.Top {
		single.send(gauge, lock, label(lock.Name))
	}
	single.send(gauge, n.Others, "") // no lock has the name "", and to Prometheus it is no label
}

// sample looks at the database once.
func (c *Collector) sample() (s sample) {
	ctx, cancel := within(c.config.Timeout)
	defer cancel()
	began := time.Now()
	defer func() { s.took = time.Since(began) }()
	numbers, err := c.admin.Statistics(ctx, c.config.Top)
	if err != nil {
		c.config.OnError(err)
		return sample{numbers: numbers}
	}
	c.drawn += max(0, numbers.Tokens-c.token) // it falls with a restore, or from a standby to its primary
	c.token = numbers.Tokens
	c.count(ctx, began)
	if c.found.at.IsZero() || began.Sub(c.found.at) >= findingsKept {
		c.found = c.diagnose(ctx, began)
	}
	return sample{up: true, numbers: numbers, tokens: c.drawn, events: c.tally.totals(), findings: c.found}
}

// count takes at most a quarter of the time of a scrape. If it fails, the totals stay, and a later scrape counts what
// is missing: a history that somebody has locked does not mean that the database does not answer.
func (c *Collector) count(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout/4)
	defer cancel()
	if err := c.tally.count(ctx, c.admin, now); err != nil {
		c.config.OnError(err)
	}
}

// diagnose takes at most half of the time of a scrape. If it fails, the scrape goes on without, and so do those of the
// next minute: a table that somebody has locked does not mean that the database does not answer.
func (c *Collector) diagnose(ctx context.Context, now time.Time) findings {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout/2)
	defer cancel()
	all, err := c.admin.Diagnose(ctx)
	if err != nil {
		c.config.OnError(err)
		return findings{at: now}
	}
	found := findings{at: now, known: true}
	for _, f := range all {
		if f.Severity == lockadmin.SeverityWarning {
			found.attention++
		}
	}
	return found
}
