//go:build !unix

package main

import "io"

// columns is the width of the terminal; 0 means unknown.
func columns(io.Writer) int { return 0 }
