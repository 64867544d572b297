package dashboard_test

import (
	"fmt"
	"testing"

	"github.com/pglock-dev/pglock/pglock"
)

type lock struct {
	Name, Holder, Token string
	Held                bool
	Remaining           int64 `json:"remaining_ms"`
	Waiting             int
	Metadata            map[string]string
}

type locks struct {
	Locks    []lock
	More     bool
	CanBreak bool `json:"can_break"`
}

func TestTheListHasLocksAndTheirTokensAsTexts(t *testing.T) {
	t.Parallel()
	s := start(t)
	lease := s.hold("app-1", "nightly", pglock.WithMetadata([]byte(`{"job":"<script>alert(1)</script>"}`)))
	got := decode[locks](t, s.get("/api/locks").want(200).body)
	if len(got.Locks) != 1 || got.Locks[0].Name != "nightly" || got.Locks[0].Token != fmt.Sprint(lease.Token()) || !got.Locks[0].Held || got.CanBreak {
		t.Errorf("%+v", got)
	}
	s.get("/api/lock?name=nightly").want(200, `"holder":"app-1"`)
	s.get("/").want(200, "<!doctype html>")
}
