//go:build !unix

package pgprograms

import "os/exec"

// Account is this process's own user, which is nil.
func Account() (*User, error) { return nil, nil }

// RunAs leaves cmd as it is.
func (u *User) RunAs(*exec.Cmd) {}

// Own leaves the file or folder as it is.
func (u *User) Own(string) error { return nil }
