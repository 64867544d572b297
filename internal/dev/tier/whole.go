//go:build whole && !long

package tier

const (
	// EveryTest says that every test runs, with loads as small as they can be.
	EveryTest = true
	// LargeLoads says that loads are as large as they were meant to be, and last as long.
	LargeLoads = false
)
