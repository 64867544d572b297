// Package look has the commands that show what there is: list, show, waiters, sessions, fences and history.
package look
