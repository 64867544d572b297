// Package failure finishes the errors that exported functions return: their texts, and why their contexts ended.
//
// What returns an error inside the library writes no name of a package into it. The exported function does so, once,
// with At. Only sentinels and types of errors bring the name themselves, because people see them alone too; inside
// another error At leaves it out.
package failure

import (
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
)

// module is the path of the packages.
const module = "github.com/pglock-dev/pglock/"

// packages begin the texts of errors.
var packages = []string{"pglock", "fencedstore", "fencedhttp", "leader", "advisory", "lockadmin", "reversible",
	"schedulers", "migrations", "dashboard", "otelpglock"}

// ErrOutcomeUnknown is pglock.ErrOutcomeUnknown.
var ErrOutcomeUnknown = errors.New("pglock: outcome unknown")

// At is the error of an exported function that was called with ctx and has failed with err: Told, after OfContext.
func At(ctx context.Context, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return Told(OfContext(ctx, err), format, args...)
}

// Told is the error of an exported function that has failed with err. The format begins with the name of the package
// and says what the function did, as in "pglock: acquire lock %q". The text of err follows, without the names of
// packages. The result wraps err.
//
// An error of a type of that package whose text names the package, such as pglock.HeldError, says it all by itself and
// stays as it is.
func Told(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(format, ": ")
	if saysItAll(err, name) {
		return err
	}
	return &told{text: fmt.Sprintf(format, args...) + ": " + Bare(err), err: err}
}

// OfContext joins what belongs together if ctx has ended and err says so: ctx's error and its cause. So whoever works
// under the context of a lost lease learns from every call that the lease is lost, and not only that a context was
// canceled. Of an unknown outcome it does not: a lost lease would say that nothing was written.
func OfContext(ctx context.Context, err error) error {
	ended := ctx.Err()
	if err == nil || ended == nil || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	cause := context.Cause(ctx)
	switch says, knows := errors.Is(err, ended), errors.Is(err, cause); {
	case says && !knows:
		return fmt.Errorf("%w: %w", err, cause)
	case knows && !says:
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

// IsOneOf reports whether err matches one of the targets.
func IsOneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// OfOurs hides that a time limit of the library's own has ended: nobody's context has. The result reads as err does,
// and matches all that err matches but the ends of contexts.
func OfOurs(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &ofOurs{err}
	}
	return err
}

type ofOurs struct{ err error }

func (e *ofOurs) Error() string { return e.err.Error() }

func (e *ofOurs) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.err, target)
}

func (e *ofOurs) As(target any) bool { return errors.As(e.err, target) }

// shownOf is how many of many errors their text shows.
const shownOf = 3

// Joined is errors.Join, but the text of more than a few says how many there are besides the first.
func Joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) <= shownOf {
		return errors.Join(errs...)
	}
	return &joined{errs}
}

type joined struct{ all []error }

func (e *joined) Error() string {
	return fmt.Sprintf("%v\nand %d more", errors.Join(e.all[:shownOf]...), len(e.all)-shownOf)
}

func (e *joined) Unwrap() []error { return e.all }

// Bare is the text of err without the names of our packages, wherever an error inside begins with one.
func Bare(err error) string {
	text := err.Error()
	strip(err, &text)
	return text
}

func strip(err error, text *string) {
	whole := err.Error()
	for _, name := range packages {
		if rest, found := strings.CutPrefix(whole, name+": "); found {
			*text = strings.Replace(*text, whole, rest, 1)
		}
	}
	switch e := err.(type) { //nolint:errorlint // this is the unwrapping
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			strip(inner, text)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			strip(inner, text)
		}
	}
}

// saysItAll reports whether the package has made the error for people to see alone.
func saysItAll(err error, name string) bool {
	kind := reflect.TypeOf(err)
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	of := kind.PkgPath()
	return slices.Contains(packages, name) && strings.HasPrefix(of, module) && path.Base(of) == name &&
		strings.HasPrefix(err.Error(), name+": ")
}

// told is what an exported function returns.
type told struct {
	text string
	err  error
}

func (e *told) Error() string { return e.text }

func (e *told) Unwrap() error { return e.err }
