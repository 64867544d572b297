// Package run has the command run: it runs a command while it holds a lock.
package run
