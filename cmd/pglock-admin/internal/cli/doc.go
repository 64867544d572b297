// Package cli has what every command has: the flags, the way to the database, answers, errors with their exit codes
// and what to try, and texts for people.
package cli
