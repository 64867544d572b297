// Package must fails a test when a call does. It is for tests only.
package must

import "testing"

// Get is what a call returns that must not fail: lease := must.Get(client.TryAcquire(ctx, "x"))(t).
func Get[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

// Do ends the test if there is an error.
func Do(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Note fails the test if there is an error, and lets it go on.
func Note(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

// Go calls f from a goroutine of its own, which does not wait for anybody who receives the answer.
func Go[T any](f func() T) chan T {
	answer := make(chan T, 1)
	go func() { answer <- f() }()
	return answer
}
