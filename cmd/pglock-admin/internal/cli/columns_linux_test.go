package cli

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheWidthOfATerminalIsKnown(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	defer terminal.Close()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 40, Row: 10}); err != nil {
		t.Fatal(err)
	}
	if n := Columns(terminal); n != 40 {
		t.Errorf("%d columns, want 40", n)
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if n := Columns(file); n != 0 {
		t.Errorf("a file has %d columns", n)
	}
}
