//go:build unix

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// columns is how wide the terminal is, 0 where w is none or it does not tell.
func columns(w io.Writer) int {
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
