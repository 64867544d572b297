//go:build unix

package pgprograms

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// Account is the user that server programs must run as: nil, which is this
// process's own user, unless that is root; then postgres, else nobody, else
// ErrNoUser.
func Account() (*User, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	return unprivileged("postgres", "nobody")
}

// RunAs makes cmd run as u, with u's own group and no others. A nil u leaves
// cmd as it is.
func (u *User) RunAs(cmd *exec.Cmd) {
	if u == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}
}

// Own gives the file or folder to u. A nil u leaves it as it is.
func (u *User) Own(path string) error {
	if u == nil {
		return nil
	}
	return os.Lchown(path, u.UID, u.GID)
}

// unprivileged gives the first of the users that exists and is not root.
func unprivileged(names ...string) (*User, error) {
	for _, name := range names {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(found.Uid)
		if err != nil {
			return nil, fmt.Errorf("user %s: id %q is no number", name, found.Uid)
		}
		gid, err := strconv.Atoi(found.Gid)
		if err != nil {
			return nil, fmt.Errorf("user %s: group id %q is no number", name, found.Gid)
		}
		if uid == 0 {
			continue
		}
		return &User{Name: name, UID: uid, GID: gid}, nil
	}
	return nil, ErrNoUser
}
