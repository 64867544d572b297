package demo

import "time"

// setup is the first line that a worker reads. It comes through the pipe and not as an argument: it may hold a password.
type setup struct {
	URL     string        `json:"url"`
	Schema  string        `json:"schema"`
	Account string        `json:"account"` // the lock has the same name
	Holder  string        `json:"holder"`
	TTL     time.Duration `json:"ttl"`
}

// What a worker is told to do.
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

// What a worker tells.
const (
	saysReady    = "ready"
	saysGranted  = "granted"
	saysRead     = "read"
	saysInvalid  = "invalid" // its own library has refused the write; it goes on to ask the server all the same
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
