// Verdicts reads what go test -json writes, and prints what go test prints without -v: a line for each package, and all
// that failing tests said. It keeps the verdict on each test, so that in the end it can say which tests were skipped
// everywhere, and why:
//
//	go test -json ./... | go run ./internal/dev/verdicts -keep FILE
//	go run ./internal/dev/verdicts -tell FILE
//
// -tell fails if a test that carries the name of a promise, as TestI4_… and TestTrap2_… do, was skipped wherever it was
// run: then nothing has shown that promise in that way.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	keep := flag.String("keep", "", "read go test -json from standard input, and add the verdicts to `file`")
	tell := flag.String("tell", "", "say which tests were skipped, by the verdicts in `file`")
	flag.Parse()
	if err := run(*keep, *tell, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "verdicts: %v\n", err)
		os.Exit(1)
	}
}

func run(keep, tell string, in io.Reader, out io.Writer) error {
	switch {
	case (keep == "") == (tell == ""):
		return errors.New("give either -keep or -tell")
	case tell != "":
		f, err := os.Open(tell)
		if err != nil {
			return err
		}
		defer f.Close()
		return report(f, out)
	}
	f, err := os.OpenFile(keep, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(follow(in, out, f), f.Close())
}
