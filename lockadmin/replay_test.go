package lockadmin

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// replayed replays tenures of one slot, a minute each. The history has all of them.
func replayed(tenures ...Tenure) Verification {
	began := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	r := replay{found: Verification{Settings: HistorySettings{Level: HistoryAll, Since: began}}}
	for _, t := range tenures {
		t.lock, t.Mode = "report", pglock.ModeExclusive
		t.GrantedAt = began.Add(time.Duration(t.Number) * time.Minute)
		t.EndedAt = t.GrantedAt.Add(time.Minute)
		t.at = t.EndedAt
		r.next(t)
	}
	return r.found
}

// A page is of one moment, and the next one of a later moment: the lease that was held on the first may have ended
// since, and its slot may have been used again.
func TestASlotThatIsUsedAgainBetweenTwoPagesLacksNothing(t *testing.T) {
	t.Parallel()
	v := replayed(
		Tenure{ID: rowOfLocks, Kind: TenureHeld, Token: 100, Number: 7}, // here a page ends
		Tenure{ID: 50, Kind: EventRelease, Token: 200, Number: 8},
		Tenure{ID: rowOfLocks, Kind: TenureHeld, Token: 300, Number: 9})
	if v.MissingUnknown != 0 || v.ViolationCount != 0 || v.Tenures != 3 {
		t.Errorf("%+v", v)
	}
	v = replayed(
		Tenure{ID: rowOfLocks, Kind: TenureHeld, Token: 100, Number: 7},
		Tenure{ID: 50, Kind: EventRelease, Token: 200, Number: 8},
		Tenure{ID: rowOfLocks, Kind: TenureHeld, Token: 300, Number: 10})
	if v.MissingUnknown != 1 || v.ViolationCount != 0 {
		t.Errorf("one is missing: %+v", v)
	}
}

func TestATokenThatWentBackIsFoundBeforeThePresentLease(t *testing.T) {
	t.Parallel()
	v := replayed(
		Tenure{ID: rowOfLocks, Kind: TenureHeld, Token: 100, Number: 7},
		Tenure{ID: 50, Kind: EventRelease, Token: 200, Number: 6})
	if v.ViolationCount != 1 || v.Violations[0].Kind != ViolationToken {
		t.Errorf("%+v", v)
	}
}
