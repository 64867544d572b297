package lockadmin

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// Obstacle is what is in the way of a request, above or below its lock (pglock.WithSubtree): a lease, which has a
// Token, or a request that came before, which has a Ticket.
type Obstacle struct {
	Lock    string       `json:"lock"`
	Subtree bool         `json:"subtree,omitempty"` // it covers all names below Lock, too
	Mode    pglock.Mode  `json:"mode"`
	Holder  string       `json:"holder"`
	Session string       `json:"session"`
	Token   pglock.Token `json:"token,omitempty"`
	Ticket  int64        `json:"ticket,omitempty"`
	Since   time.Time    `json:"since"` // of the grant, or of the request

	For time.Duration `json:"-"` // since then
}

// MarshalJSON writes durations in milliseconds.
func (o Obstacle) MarshalJSON() ([]byte, error) {
	type plain Obstacle
	return json.Marshal(struct {
		plain
		For int64 `json:"for_ms"`
	}{plain(o), o.For.Milliseconds()})
}

// Obstructed is a request for another lock, above or below, that waits for this one.
type Obstructed struct {
	Lock    string        `json:"lock"`
	Ticket  int64         `json:"ticket"`
	Holder  string        `json:"holder"`
	Since   time.Time     `json:"since"`
	Waiting time.Duration `json:"-"`
}

// MarshalJSON writes durations in milliseconds.
func (o Obstructed) MarshalJSON() ([]byte, error) {
	type plain Obstructed
	return json.Marshal(struct {
		plain
		Waiting int64 `json:"waiting_ms"`
	}{plain(o), o.Waiting.Milliseconds()})
}

// readTree reads what is in the way of the first in the queue, and whose way this lock is in.
func (l *look) readTree(r *reader, q *protocol.Queries) {
	l.Obstructed = rows(r, q.Obstructed, []any{l.Lock}, l.scanObstructed)
	if l.Queue.Alive == nil {
		return
	}
	for _, o := range rows(r, q.Obstacles, []any{l.Lock}, scanObstacle) {
		if o.Lock == "" {
			l.clear = o.Since
		} else {
			o.For = l.ago(o.Since)
			l.Obstacles = append(l.Obstacles, o)
		}
	}
}

func scanObstacle(rows pgx.Rows) (o Obstacle, err error) {
	err = rows.Scan(null(&o.Lock), null(&o.Token), null(&o.Ticket), null(&o.Mode), null(&o.Subtree),
		null(&o.Holder), null(&o.Session), moment(&o.Since))
	return o, err
}

func (l *look) scanObstructed(rows pgx.Rows) (o Obstructed, err error) {
	err = rows.Scan(&o.Lock, &o.Ticket, &o.Holder, moment(&o.Since))
	o.Waiting = l.ago(o.Since)
	return o, err
}

// treeText is a lock within a sentence: its name, and whether all below it is meant, too.
func treeText(name string, subtree bool) string {
	return shown.Either(subtree, "subtree ", "") + word(name)
}

// Place says where an obstacle lies, from a lock.
func (o Obstacle) Place(lock string) string {
	return shown.Either(strings.HasPrefix(lock, o.Lock+"/"), "above", "below")
}

func (l *look) told(o Obstacle) string {
	if o.Token == 0 {
		return say("%s came before, with ticket %d for %s, which lies %s, and has waited for %s", label(o.Holder),
			o.Ticket, treeText(o.Lock, o.Subtree), o.Place(l.Lock), o.For)
	}
	return say("%s holds %s, which lies %s, with token %d, and has had it for %s", label(o.Holder), treeText(o.Lock,
		o.Subtree), o.Place(l.Lock), int64(o.Token), o.For)
}

func (l *look) treeVerdict() {
	first, o := l.Queue.Alive, l.Obstacles[0]
	v := Verdict{Kind: whySubtree, Severity: SeverityBusy, Who: o.Holder, Since: first.Since}
	v.Text = say("Nobody holds %s, and %s has waited for %s for %s: something is in the way. %s.", l.lock(),
		label(first.Holder), shown.Either(first.Subtree, "it and all names below it", "it"), first.Waiting,
		l.told(o))
	v.Text += more(len(l.Obstacles)-1, " 1 more is in the way, too.", " %d more are in the way, too.")
	v.Text += l.elsewhere()
	v.Because = "A subtree and what lies below it exclude each other, and whoever came first has it first."
	v.IfNothing = say("%s gets the lock when nothing is in its way any more.", label(first.Holder))
	v.Steps = []Step{again("The cause is there: look at that lock.", o.Lock), again("Then at this one again.", l.Lock)}
	l.add(v)
}

// besidesTree says what else is in the way of the first in the queue of a lock that is held.
func (l *look) besidesTree(v *Verdict) {
	if len(l.Obstacles) == 0 {
		return
	}
	o := l.Obstacles[0]
	v.Text += say(" Another lock is in the way of the first in the queue, too: %s.", l.told(o))
	v.Steps = append(v.Steps, again("Look at the other lock that is in the way.", o.Lock))
}

// elsewhere is a sentence about those who wait for this lock because it is above or below theirs.
func (l *look) elsewhere() string {
	n := len(l.Obstructed)
	if n == 0 {
		return ""
	}
	o := l.Obstructed[0]
	return say(" It is in the way of %s: %s has waited for lock %s for %s.", count(n, "request")+" for other locks",
		label(o.Holder), word(o.Lock), o.Waiting)
}
