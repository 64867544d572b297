//go:build !unix

package pgtest

import "os/exec"

// detach does nothing on this system.
func detach(*exec.Cmd) {}
