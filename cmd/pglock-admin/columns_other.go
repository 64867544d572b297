//go:build !unix

package main

import "io"

// columns is how wide the terminal is, 0 where nobody tells.
func columns(io.Writer) int { return 0 }
