//go:build !unix

package pgprograms

import "os/exec"

// RunAs leaves cmd as it is.
func (u *User) RunAs(*exec.Cmd) {}
