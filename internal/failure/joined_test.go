package failure

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestManyErrorsShowTheFirstFewAndTheirNumber(t *testing.T) {
	t.Parallel()
	if err := Joined(make([]error, 5)); err != nil {
		t.Errorf("of none: %v", err)
	}
	errs := []error{nil}
	for n := range 5 {
		errs = append(errs, fmt.Errorf("lock %d", n))
	}
	errs = append(errs, io.EOF)
	if few := Joined(errs[:4]); few.Error() != "lock 0\nlock 1\nlock 2" {
		t.Errorf("of three: %v", few)
	}
	many := Told(Joined(errs[:]), "pglock: release %d locks", 6)
	if many.Error() != "pglock: release 6 locks: lock 0\nlock 1\nlock 2\nand 3 more" || !errors.Is(many, io.EOF) {
		t.Errorf("of six: %v, want the first three, and that it is the last one too", many)
	}
}
