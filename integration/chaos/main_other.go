//go:build !unix

// Chaos needs processes that can be stopped and killed: a Unix system.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "chaos: it stops and kills processes, which takes a Unix system")
	os.Exit(2)
}
