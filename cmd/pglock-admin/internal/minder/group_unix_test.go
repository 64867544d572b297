//go:build unix

package minder

import (
	"os"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// mindful is the argument that makes this program a minder.
const mindful = "mindful"

// stuck is the argument that makes this program a minder that never reads an order, as one that was stopped at once.
const stuck = "stuck"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == stuck {
		time.Sleep(time.Hour) // until it is killed
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == mindful {
		if err := Mind(os.Args[2:]); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Signal 9 for "process 0" would kill the program and everybody else in its process group.
func TestKillBeforeTheCommandHasStartedKillsTheMinderAlone(t *testing.T) {
	g := must.Get(Start(Command{
		Minder: []string{stuck}, Path: "/bin/true", Args: []string{"true"}, Deadline: time.Now().Add(time.Hour),
	}))(t)
	g.Kill(0)
	if event, there := <-g.Events; there {
		t.Errorf("a minder that never acted says %+v", event)
	}
	must.Note(t, g.Close())
}
