//go:build unix && !linux

package pgserver

// memory is "": nothing is known of a folder in memory.
func memory() string { return "" }
