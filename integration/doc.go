// Package integration holds the tests of the whole system against real servers: the invariants and the traps by name,
// processes that are stopped and killed, lines that are cut, servers that crash. It has no code of its own.
package integration
