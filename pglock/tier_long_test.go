//go:build long

package pglock_test

// long: this run has what takes long, too.
const long = true
