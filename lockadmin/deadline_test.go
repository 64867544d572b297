package lockadmin_test

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The server's timeouts reach 24 days. A caller that has more time has no limit that the server would refuse.
func TestACallMayHaveAMonth(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, pgtest.Database(t).Pool(t))
	ctx, cancel := context.WithTimeout(t.Context(), 30*24*time.Hour)
	defer cancel()
	if _, err := lists.All(admin.Locks(ctx, lockadmin.LocksQuery{})); err != nil {
		t.Errorf("Locks: %v", err)
	}
	if _, err := admin.SetHistory(ctx, lockadmin.HistoryChange{Level: lockadmin.HistoryAll}); err != nil {
		t.Errorf("SetHistory: %v", err)
	}
}
