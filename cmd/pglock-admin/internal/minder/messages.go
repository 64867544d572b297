//go:build unix

package minder

import (
	"encoding/json"
	"io"
	"syscall"
	"time"
)

// order is what the program tells the minder.
type order struct {
	Trust  *span          `json:"trust,omitempty"`  // the deadline has moved; the first one starts the command
	Signal syscall.Signal `json:"signal,omitempty"` // for the group
	End    bool           `json:"end,omitempty"`    // TERM now, KILL some time later or at the deadline
}

// span says how much time was left at a moment of the wall clock, the only clock that two processes share.
type span struct {
	Wall int64         `json:"wall"` // in nanoseconds since 1970
	Left time.Duration `json:"left"`
}

func spanUntil(deadline time.Time) *span {
	now := time.Now()
	return &span{now.UnixNano(), deadline.Sub(now)}
}

// left is how much time is left now. It subtracts the time that the message took.
func (s span) left(now time.Time) time.Duration {
	return s.Left - max(0, time.Duration(now.UnixNano()-s.Wall))
}

type Kind string

// The kinds of events, in the order in which they may come.
const (
	Started Kind = "started" // the command runs as Pid
	Failed  Kind = "failed"  // it could not be started: Err
	Stopped Kind = "stopped" // it was stopped by Signal, as by Ctrl-Z
	Ending  Kind = "ending"  // the deadline is near: the group was sent TERM
	Killed  Kind = "killed"  // the group was sent KILL
	Left    Kind = "left"    // the command has ended, others of its group have not: they were sent TERM
	Ended   Kind = "ended"   // the whole group has ended; Code and Signal are the command's. It is the last event
)

// Event is what the minder tells the program.
type Event struct {
	Kind   Kind           `json:"kind"`
	Pid    int            `json:"pid,omitempty"`
	Err    syscall.Errno  `json:"err,omitempty"`
	Code   int            `json:"code,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"` // 0 where the command has ended by itself
}

// send writes a message as a line. If the other side is gone, whoever reads from it notices.
func send(w io.Writer, message any) { _ = json.NewEncoder(w).Encode(message) }

// receive sends each message to the channel, and closes the channel when the other side is gone.
func receive[T any](r io.Reader, messages chan<- T) {
	defer close(messages)
	for lines := json.NewDecoder(r); ; {
		var message T
		if lines.Decode(&message) != nil {
			return
		}
		messages <- message
	}
}
