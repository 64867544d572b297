//go:build !unix

package cli

import "io"

// Columns is the width of the terminal; 0 means unknown.
func Columns(io.Writer) int { return 0 }
