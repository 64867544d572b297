// Package troubles prepares locks in trouble on a real server, for tests of what explains them and for people who want to
// see such a lock. Each trouble is made as it happens in life: with processes that are killed or stopped, sessions that
// leave transactions open, and transactions that nobody ends. Only the clock is helped along: rows are made older, so that
// nobody waits for half an hour. It stops processes by signals, so it works on Unix alone.
package troubles
