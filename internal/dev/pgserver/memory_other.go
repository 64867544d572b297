//go:build unix && !linux

package pgserver

// memory is "": no folder in memory is known.
func memory() string { return "" }
