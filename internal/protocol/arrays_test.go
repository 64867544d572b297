package protocol

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A session with array_nulls off reads NULL in the text of an array as a word. So what is missing in a statement for
// several calls arrives as missing there too, in every mode.
func TestWhatIsMissingInAListIsMissingWhateverTheSessionReads(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			conn := connect(t, pgtest.Database(t), mode)
			must.Get(conn.Exec(t.Context(), "set array_nulls = off"))(t)
			var e Executor
			run := func(s Step) {
				t.Helper()
				must.Do(t, e.Run(t.Context(), conn, s))
			}
			q, session := NewQueries("pglock"), Session{Key: uuid.New(), Holder: "h", TTL: time.Minute}
			requests := []Request{
				{RequestID: RequestID{Name: "a", GrantID: uuid.New()}, Mode: "exclusive"},
				{RequestID: RequestID{Name: "b", GrantID: uuid.New()}, Mode: "limit", Capacity: 3,
					Metadata: json.RawMessage(`{"a": 1}`)}}
			for i := range requests {
				requests[i].Session, requests[i].Holder, requests[i].TTL = session, "h", time.Minute
			}
			answers := make([]Answer, 2)
			run(q.Acquire(requests, answers))
			claims := make([]Claim, 2)
			for i, a := range answers {
				claims[i] = Claim{Name: requests[i].Name, Token: a.Token, GrantID: requests[i].GrantID, Slot: a.Slot}
			}
			claims[1].Lasting = time.Hour
			verdicts := map[Claim]Verdict{}
			run(q.RenewAll(claims, verdicts))
			if a, b := verdicts[claims[0]], verdicts[claims[1]]; a.Outcome != Renewed || b.Outcome != Renewed ||
				a.Remaining > time.Minute || b.Remaining <= time.Minute {
				t.Errorf("renewed, the second for an hour: %+v", verdicts)
			}
			undo := Claim{Name: "b", Token: claims[1].Token, GrantID: claims[1].GrantID, Slot: claims[1].Slot,
				NoLonger: verdicts[claims[1]].ExpiresAt.UnixMicro()}
			var v Verdict
			if run(q.Renew(undo, 0, &v)); v.Remaining > time.Minute {
				t.Errorf("no longer for an hour: %+v", v)
			}
			var told int64
			run(q.Announce([]string{"a", "b"}, []*int{nil, new(int)}, &told))
			var missing, given bool
			if err := conn.QueryRow(t.Context(), `SELECT bool_and(metadata IS NULL AND capacity IS NULL) FILTER
					(WHERE name = 'a'), bool_or(metadata = '{"a": 1}' AND capacity = 3) FILTER (WHERE name = 'b')
				FROM pglock.locks`).Scan(&missing, &given); err != nil || !missing || !given {
				t.Errorf("a has neither metadata nor a limit: %v; b has both: %v; %v", missing, given, err)
			}
		})
	}
}
