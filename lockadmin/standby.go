package lockadmin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/shown"
)

// Standby says that a server is a standby, and how old the past is that it shows. It sees no connection of the primary,
// so it calls no client silent or dead, and knows no process that works for a lock.
type Standby struct {
	// Behind is how far the standby is behind its primary, at most; 0 if it has replayed all that it has received. Nil
	// if nobody can tell: it receives nothing, or has replayed no transaction since it started.
	Behind *time.Duration `json:"-"`
	// ReplayedAt is when the last transaction that it shows was committed, by the primary's clock; zero if it has
	// replayed none since it started.
	ReplayedAt time.Time `json:"replayed_at,omitzero"`
	// Receiving says that it is connected to its primary. Of a connection that has died silently it says so until
	// wal_receiver_timeout ends it.
	Receiving bool `json:"receiving"`
	// Source is the host and port from which it receives: of the primary, or of another standby. "" if it receives
	// nothing, or the user lacks pg_read_all_stats.
	Source string `json:"source,omitempty"`

	at time.Time // by the standby's clock
}

// MarshalJSON writes durations in milliseconds, and null for one that nobody can tell.
func (s Standby) MarshalJSON() ([]byte, error) {
	type plain Standby
	var behind *int64
	if s.Behind != nil {
		behind = new(s.Behind.Milliseconds())
	}
	return json.Marshal(struct {
		Behind *int64 `json:"behind_ms"`
		plain
		Text string `json:"text"`
	}{behind, plain(s), s.String()})
}

// String says in a few sentences what the reader of its answers has to know.
func (s Standby) String() string {
	text := "This is a standby: it shows the past"
	switch {
	case s.Behind != nil && *s.Behind == 0:
		return text + ". It is 0 s behind: it has replayed all that it has received."
	case s.Behind != nil:
		text += say(", and is up to %s behind the primary.", *s.Behind)
		if *s.Behind < time.Second { // no lease looks wrong yet
			return text
		}
	case s.Receiving:
		text += ". How far it is behind the primary cannot be known: it has replayed no transaction since it started."
	default:
		text += ". How far it is behind the primary cannot be known: it receives nothing from there."
		if !s.ReplayedAt.IsZero() {
			text += say(" The last transaction that it shows is %s old.", max(0, s.at.Sub(s.ReplayedAt)))
		}
	}
	return text + " A lease that was renewed since then may look as if it had run out."
}

// Standby says how far the server is behind its primary; nil if it is a primary. Errors are those of Locks.
func (a *Admin) Standby(ctx context.Context) (*Standby, error) {
	found, err := server.Rows(ctx, a.db, protocol.Replayed, nil, scanStandby)
	return firstOrNil(found), failed(ctx, err, "ask whether the server is a standby")
}

func firstOrNil(found []Standby) *Standby {
	if len(found) == 0 {
		return nil
	}
	return &found[0]
}

func scanStandby(rows pgx.Rows) (s Standby, err error) {
	var caughtUp bool
	err = rows.Scan(moment(&s.at), &s.Receiving, &caughtUp, moment(&s.ReplayedAt), &s.Source)
	switch {
	case s.Receiving && caughtUp:
		s.Behind = new(time.Duration)
	case s.Receiving && !s.ReplayedAt.IsZero():
		s.Behind = new(max(time.Millisecond, s.at.Sub(s.ReplayedAt)))
	}
	return s, err
}

func (l *look) standbyVerdict() {
	v := Verdict{Kind: whyStandby, Severity: SeverityNote}
	v.Because = "A standby does not see the server's processes of the primary. So it cannot say whether a program is " +
		"alive, nor what stands in its way."
	switch {
	case l.closed:
		v.Text = say("Nobody can read the tables of pglock here: no answer within %s.", patience)
		v.Because = "A transaction on the primary has probably locked a whole table, as LOCK TABLE, ALTER TABLE and " +
			"VACUUM FULL do. A standby locks it likewise, and does not know who it is."
	case len(l.Holders) == 1:
		h := l.Holders[0]
		v.Text = say("As far as this standby knows, %s is held by %s, which got it %s ago", l.lock(), h.Holder,
			h.HeldFor)
		v.Text += shown.Either(h.SignedAt.IsZero(), ". No sign of life has arrived here since.",
			say(". The last sign of life that has arrived here is %s old.", h.Silent))
	case len(l.Holders) > 1:
		v.Text = say("As far as this standby knows, %s has %s.", l.lock(), count(len(l.Holders), "holder"))
	case l.Last != nil && l.Last.EndedAt.IsZero():
		v.Text = say("As far as this standby knows, the lease of %s, which was the last to hold %s, was not renewed "+
			"and ran out %s ago.", l.Last.Holder, l.lock(), l.At.Sub(l.Last.ExpiresAt))
	default:
		v.Text = say("As far as this standby knows, %s is free.", l.lock())
	}
	l.add(v)
}

// askPrimary puts one step into the place of all that change something, which a standby refuses.
func (l *look) askPrimary() {
	ask := []Step{{Do: "Ask the primary. It alone knows how the lock is now, and nothing can be done here."}}
	if s := l.Standby.Source; s != "" {
		ask[0].Do += " This standby receives from " + s + ": that is the primary, or another standby."
	}
	for i := range l.Verdicts {
		v := &l.Verdicts[i]
		v.IfNothing = ""
		if v.Steps = ask; l.State == LockUnknown {
			v.Because = "A standby shows the past: the primary may know the lock by now."
		}
	}
}
