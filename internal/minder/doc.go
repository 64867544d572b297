// Package minder runs a command in a process group of its own, which ends at a deadline even when the program that
// started it is stopped or killed.
//
// Between the program and the command stands a process, the minder, which is this program again:
//
//	program ──socket──▶ minder ──▶ command ──▶ whatever it starts
//	                               └─── one process group ───┘
//
// The program moves the deadline on. The minder sends TERM to the group some time before the deadline, and KILL at it.
// When the program's end of the socket closes, because it has ended in whatever way, the minder kills the group at
// once.
package minder
