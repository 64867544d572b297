package demo

import (
	"encoding/json"
	"time"
)

// setup is the first line that a worker reads. It comes through the pipe, not as an argument, because it may hold a
// password.
type setup struct {
	URL     string        `json:"url"`
	Schema  string        `json:"schema"`
	Account string        `json:"account"` // also the lock's name
	Holder  string        `json:"holder"`
	TTL     time.Duration `json:"ttl"`
}

// The commands to a worker.
const (
	doAcquire = "acquire"
	doRead    = "read"
	doWrite   = "write"
	doRelease = "release"
)

// command is a line that a worker reads.
type command struct {
	Do     string `json:"do"`
	Amount int64  `json:"amount,omitempty"` // of the deposit to write
	Act    int    `json:"act,omitempty"`
	Fenced bool   `json:"fenced,omitempty"`
}

// The reports of a worker.
const (
	saysReady    = "ready"
	saysGranted  = "granted"
	saysRead     = "read"
	saysInvalid  = "invalid" // its own library has refused the write; it asks the server nevertheless
	saysWrote    = "wrote"
	saysRefused  = "refused" // by the server
	saysReleased = "released"
	saysFailed   = "failed"
)

// report is a line that a worker writes.
type report struct {
	Says    string `json:"says"`
	Token   int64  `json:"token,omitempty"`
	Read    int64  `json:"read,omitempty"`
	Wrote   int64  `json:"wrote,omitempty"` // or tried to
	State   string `json:"state,omitempty"` // SQLSTATE of a refusal
	Message string `json:"message,omitempty"`
}

// receive hands on each message, until the other side is gone.
func receive[T any](lines *json.Decoder, to chan<- T) {
	for {
		var message T
		if lines.Decode(&message) != nil {
			return
		}
		to <- message
	}
}
