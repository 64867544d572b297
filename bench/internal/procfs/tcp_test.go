package procfs

import (
	"net"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestConnectionsAreCountedAtOneEndWhileTheyAreOpen(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	count := func() int {
		n := must.Get(Connections(port))(t)
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d before the first", n)
	}
	for want := 1; want <= 3; want++ {
		c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
		defer c.Close()
		// A look may miss a line of the table, where connections of others come and go meanwhile.
		for deadline := time.Now().Add(10 * time.Second); count() != want; {
			if time.Now().After(deadline) {
				t.Fatalf("%d, want %d", count(), want)
			}
		}
	}
}
