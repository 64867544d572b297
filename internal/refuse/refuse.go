// Package refuse refuses arguments, for the packages beside pglock. Its errors are pglock.ErrInvalid.
package refuse

import (
	"fmt"
	"reflect"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/pglock"
)

// Invalid says what is wrong with an argument.
func Invalid(field, value, rule string) error {
	return &pglock.ArgumentError{Field: field, Value: value, Rule: rule}
}

// If refuses an argument that is bad.
func If(bad bool, field, value, rule string) error {
	if bad {
		return Invalid(field, value, rule)
	}
	return nil
}

// Nil refuses an argument that is nil.
func Nil(field, rule string) error { return Invalid(field, "nil", rule) }

// Lease refuses a lease that no client was granted.
func Lease(l *pglock.Lease) error {
	return If(l == nil || l.Token() == 0, "lease", "nil or zero", "be a *pglock.Lease that a Client was granted")
}

// IsNil reports whether an argument of an interface type is nil, or holds a nil pointer.
func IsNil(argument any) bool {
	v := reflect.ValueOf(argument)
	return argument == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Text refuses a text that is empty, longer than most bytes, not UTF-8, or that PostgreSQL cannot store.
func Text(field, value string, most int) error {
	if p := argument.Text(field, value, most); p != nil {
		return (*pglock.ArgumentError)(p)
	}
	return nil
}

// Number refuses a number that is less than least or greater than most.
func Number(field string, n, least, most int) error {
	return If(n < least || n > most, field, fmt.Sprint(n), fmt.Sprintf("be from %d to %d", least, most))
}

// Option calls an option of any package.
func Option[C any, O ~func(*C) error](c *C, o O) error {
	if o == nil {
		return Nil("option", "be an option of this package")
	}
	return o(c)
}

// Options calls options until one of them is refused.
func Options[C any, O ~func(*C) error](c *C, opts []O) error {
	for _, o := range opts {
		if err := Option(c, o); err != nil {
			return err
		}
	}
	return nil
}
