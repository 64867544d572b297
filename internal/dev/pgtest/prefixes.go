package pgtest

import (
	"fmt"
	"regexp"
)

// prefixes finds what the errors of the packages begin with, and what pglock says of a request for a lock.
var prefixes = regexp.MustCompile(
	`(^|[^\w./-])(pglock|fencedstore|fencedhttp|leader|advisory|lockadmin|reversible|schedulers|migrations|dashboard|otelpglock): `)

// acquiring finds the other words that errors used to say again and again.
var acquiring = regexp.MustCompile(`acquire (lock |\d+ locks)`)

// PrefixedOnce says what is wrong with the text of an error of an exported function: it begins with the name of a
// package of ours, names none after that, and says only once what was asked for. nil: nothing is wrong.
func PrefixedOnce(err error) error {
	text := err.Error()
	at := prefixes.FindAllStringIndex(text, -1)
	switch {
	case len(at) == 0 || at[0][0] != 0:
		return fmt.Errorf("it does not begin with the name of a package: %q", text)
	case len(at) > 1:
		return fmt.Errorf("it has %d prefixes: %q", len(at), text)
	case len(acquiring.FindAllString(text, -1)) > 1:
		return fmt.Errorf("it says twice what was asked for: %q", text)
	}
	return nil
}
