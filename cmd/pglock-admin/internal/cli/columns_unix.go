//go:build unix

package cli

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Columns is the width of the terminal; 0 means unknown, or that w is no terminal.
func Columns(w io.Writer) int {
	f, is := w.(*os.File)
	if !is {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
