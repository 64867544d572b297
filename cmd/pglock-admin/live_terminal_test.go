package main

import (
	"os"
	"strings"
	"testing"
)

func TestAScreenRefusesATerminalThatIsDumb(t *testing.T) {
	t.Parallel()
	dumb := func(name string) string {
		if name == "TERM" {
			return "dumb"
		}
		return os.Getenv(name)
	}
	o := &options{output: outputTable, getenv: dumb}
	if err := o.checkTerminal(true, "pglock-admin list"); err == nil ||
		!strings.Contains(err.Error(), "TERM is dumb") {
		t.Error(err)
	}
}
