package pgprograms

import (
	"errors"
	"os"
	"os/user"
	"strconv"
)

// A User is the account that runs server programs if this process is root, which PostgreSQL refuses. A nil *User
// means this process's own user.
type User struct {
	Name     string
	UID, GID int
}

// Account returns the user that must run server programs: nil, which is this process's own user, unless that is root;
// then postgres, else nobody.
func Account() (*User, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			uid, uidErr := strconv.Atoi(found.Uid)
			gid, gidErr := strconv.Atoi(found.Gid)
			return &User{name, uid, gid}, errors.Join(uidErr, gidErr)
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")
}

// Own gives the file or folder to u. A nil u leaves it as it is.
func (u *User) Own(path string) error {
	if u == nil {
		return nil
	}
	return os.Lchown(path, u.UID, u.GID)
}

// TempDir is a folder for temporary files that u can enter: that of this process may be for its own user alone.
func (u *User) TempDir() string {
	if u == nil {
		return os.TempDir()
	}
	return "/tmp"
}

// Write makes a file that only u and root can read.
func (u *User) Write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return u.Own(path)
}
