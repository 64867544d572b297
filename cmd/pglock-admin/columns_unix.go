//go:build unix

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// columns is the width of the terminal; 0 means unknown, or that w is no terminal.
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
