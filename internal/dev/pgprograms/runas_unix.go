//go:build unix

package pgprograms

import (
	"os/exec"
	"syscall"
)

// RunAs makes cmd run as u, with u's own group and no others. A nil u leaves cmd as it is.
func (u *User) RunAs(cmd *exec.Cmd) {
	if u == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}
}
