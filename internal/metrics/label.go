package metrics

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// labelBytes bounds a lock's name in a label, without its digest.
const labelBytes = 128

// altered finds names that end like a label that label has altered.
var altered = regexp.MustCompile(`~[0-9a-f]{16}$`)

// label is a lock's name as a label. Most names stay as they are. A name that is long, or has characters that a
// terminal or a page could take for orders, is shortened, has each of them replaced, and gets a digest, so that no two
// names have the same label.
func label(name string) string {
	safe := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, name)
	if len(safe) > labelBytes {
		safe = strings.ToValidUTF8(safe[:labelBytes], "") + "…"
	}
	if safe == name && !altered.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s~%x", safe, sum[:8])
}
