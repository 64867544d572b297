package lockadmin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAStandbySaysHowFarItIsBehind(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 3, 16, 0, 0, time.UTC)
	behind := func(d time.Duration) *time.Duration { return &d }
	const ranOut = "A lease that was renewed since then may look as if it had run out."
	for _, tc := range []struct {
		standby    Standby
		text, data string
	}{
		{Standby{Behind: behind(0), Receiving: true},
			"This is a standby: it shows the past. It is 0 s behind: it has replayed all that it has received.",
			`{"behind_ms":0,"receiving":true,`},
		{Standby{Behind: behind(400 * time.Millisecond), Receiving: true},
			"This is a standby: it shows the past, and is up to 400ms behind the primary.",
			`{"behind_ms":400,"receiving":true,`},
		{Standby{Behind: behind(90 * time.Second), Receiving: true, ReplayedAt: now.Add(-90 * time.Second), at: now},
			"This is a standby: it shows the past, and is up to 1m30s behind the primary. " + ranOut,
			`{"behind_ms":90000,"replayed_at":"2026-11-22T03:14:30Z","receiving":true,`},
		{Standby{Receiving: true},
			"This is a standby: it shows the past. How far it is behind the primary cannot be known: " +
				"it has replayed no transaction since it started. " + ranOut, `{"behind_ms":null,"receiving":true,`},
		{Standby{ReplayedAt: now.Add(-time.Hour), at: now},
			"This is a standby: it shows the past. How far it is behind the " +
				"primary cannot be known: it receives nothing from there. The last transaction that it shows is 1h " +
				"old. " + ranOut,
			`{"behind_ms":null,"replayed_at":"2026-11-22T02:16:00Z","receiving":false,`},
	} {
		if got := tc.standby.String(); got != tc.text {
			t.Errorf("%q, want %q", got, tc.text)
		}
		if got, err := json.Marshal(tc.standby); err != nil || !strings.HasPrefix(string(got), tc.data) {
			t.Errorf("%s, %v, want %s", got, err, tc.data)
		}
	}
}

// On a standby a verdict says what its tables say, blames nobody for being silent, and proposes nothing that a standby
// refuses.
func TestAStandbyProposesNothingButToAskThePrimary(t *testing.T) {
	t.Parallel()
	silent := lookAt(holderOf(25 * time.Second))
	silent.Holders[0].Life = LifeUnknown
	circle := lookAt(holderOf(time.Second))
	circle.Circle = []Wait{{Waiter: "a", Holds: "report", For: "other", Holder: "b", SameOwner: true},
		{Waiter: "b", Holds: "other", For: "report", Holder: "a", SameOwner: true}}
	guard := lookAt(holderOf(time.Second))
	guard.Guards = []BrokenGuard{{Table: "public.accounts", Resource: "report", Problem: "it has no trigger"}}
	unknown := &look{Explanation: Explanation{Lock: "report", State: LockUnknown, Similar: []string{"reports"}}}
	closed := &look{closed: true, tables: []tableLock{{table: "locks", Backend: Backend{PID: 99}}},
		Explanation: Explanation{Lock: "report", State: LockHidden}}
	for name, tc := range map[string]struct {
		l    *look
		kind string
		says string
	}{
		"a holder that does not renew": {silent, whyStandby,
			"report is held by app-1/reporter[4711], which got it 1m ago. " +
				"The last sign of life that has arrived here is 25s old."},
		"a circle":               {circle, whyCircle, "A deadlock"},
		"a guard":                {guard, whyGuard, "is broken"},
		"a name that is unknown": {unknown, whyUnknown, "Nobody has used"},
		"a table that is locked": {closed, whyStandby, "Nobody can read the tables of pglock here"},
	} {
		tc.l.Standby = &Standby{}
		tc.l.conclude()
		v := tc.l.Verdicts[0]
		if v.Kind != tc.kind || !strings.Contains(v.Text, tc.says) {
			t.Errorf("%s: %+v", name, v)
		}
		for _, v := range tc.l.Verdicts {
			if len(v.Steps) != 1 || v.Steps[0].Command != "" || !strings.Contains(v.Steps[0].Do, "Ask the primary") ||
				v.IfNothing != "" || strings.Contains(v.Text+v.Because, " dead ") ||
				strings.Contains(v.Text+v.Because, "process 99") {
				t.Errorf("%s: %+v", name, v)
			}
		}
	}
}
