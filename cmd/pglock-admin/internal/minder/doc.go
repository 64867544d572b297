// Package minder runs a command in its own process group. The group ends at a deadline, even if the program that
// started it is stopped or killed.
//
// Between the program and the command stands a process, the minder, which is this program again:
//
//	program ──socket──▶ minder ──▶ command ──▶ whatever it starts
//	                               └─── one process group ───┘
//
// The command begins as a gate, which is this program too: it waits until the minder has told the program its number,
// and becomes the command then. So the program can kill a group that runs, even if somebody has killed the minder.
//
// The program moves the deadline forward. The minder sends TERM to the group some time before the deadline, and KILL at
// the deadline. If the program ends for any reason, its end of the socket closes, and the minder kills the group at
// once.
package minder
