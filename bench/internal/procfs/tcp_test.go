package procfs

import (
	"net"
	"testing"
	"time"
)

func TestConnectionsAreCountedAtOneEndWhileTheyAreOpen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	count := func() int {
		n, err := Connections(port)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d before the first", n)
	}
	for want := 1; want <= 3; want++ {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// A look may miss a line of the table, where connections of others come and go meanwhile.
		for deadline := time.Now().Add(10 * time.Second); count() != want; {
			if time.Now().After(deadline) {
				t.Fatalf("%d, want %d", count(), want)
			}
		}
	}
}
