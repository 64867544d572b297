package pgprograms

import "errors"

// A User is the account that server programs run as when this process is root,
// which PostgreSQL refuses. A nil *User means this process's own user.
type User struct {
	Name     string
	UID, GID int
}

// ErrNoUser is in the error of Account when this process is root and there is
// no unprivileged user to run a server as.
var ErrNoUser = errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")

// asUser is for messages.
func (u *User) asUser() string {
	if u == nil {
		return ""
	}
	return " as user " + u.Name
}
