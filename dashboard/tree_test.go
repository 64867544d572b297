package dashboard_test

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/pglock"
)

func TestThePageMarksSubtreesAndSaysWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.hold("mover", "tenants/7", pglock.WithSubtree())
	s.wait("importer", "tenants/7/import")
	list := decode[struct{ Locks []struct{ Subtree bool } }](t, s.get("/api/locks").want(200).body)
	if len(list.Locks) != 1 || !list.Locks[0].Subtree {
		t.Errorf("the list has %+v", list)
	}
	got := decode[struct {
		Why struct {
			Severity string
			Verdicts []struct {
				Kind, Text string
				Steps      []struct{ Command string }
			}
		}
	}](t, s.get("/api/lock?name=tenants/7/import").want(200, `"behind":"mover"`, `"behind_lock":"tenants/7"`).body)
	v := got.Why.Verdicts[0]
	if v.Kind != "subtree" || got.Why.Severity != "busy" ||
		!strings.Contains(v.Text, "mover holds subtree tenants/7") || v.Steps[0].Command != "why tenants/7" {
		t.Errorf("%+v", got)
	}
}
