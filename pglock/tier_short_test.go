//go:build !long

package pglock_test

const long = false
