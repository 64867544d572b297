package fencedstore

import "testing"

// A look that the server answers just after a transaction has ended sees no wait. It does not hide the wait that ended
// the transaction; a wait that is over when the transaction goes on does not stay.
func TestOneLookWithoutAWaitDoesNotHideTheWaitBefore(t *testing.T) {
	t.Parallel()
	first, second := &Wait{For: "table a"}, &Wait{For: "table b"}
	var l lookout
	for i, step := range []struct{ sees, keeps *Wait }{
		{nil, nil}, {first, first}, {nil, first}, {second, second}, {nil, second}, {nil, nil}, {nil, nil},
		{first, first},
	} {
		if l.note(step.sees); l.seen != step.keeps {
			t.Errorf("after look %d it keeps %v, want %v", i, l.seen, step.keeps)
		}
	}
	l.note(nil)
	l.passed(1)
	if l.note(nil); l.seen != nil {
		t.Errorf("past the fence it keeps the wait in front of it: %v", l.seen)
	}
}
