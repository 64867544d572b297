//go:build !unix

package main

import (
	"io"
	"os"
)

// columns is the width of the terminal; 0 means unknown.
func columns(io.Writer) int { return 0 }

// isTerminal says whether a file is a terminal, and asks no question where nobody knows.
func isTerminal(*os.File) bool { return false }
