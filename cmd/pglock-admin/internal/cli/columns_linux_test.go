package cli

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestTheWidthOfATerminalIsKnown(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	defer terminal.Close()
	must.Do(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 40, Row: 10}))
	if n := Columns(terminal); n != 40 {
		t.Errorf("%d columns, want 40", n)
	}
	file := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer file.Close()
	if n := Columns(file); n != 0 {
		t.Errorf("a file has %d columns", n)
	}
}
