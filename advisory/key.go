package advisory

import (
	"fmt"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/refuse"
)

// Key is the key of an advisory lock, as the old programs write it. PostgreSQL keeps keys of one bigint and keys of
// two ints apart: they never meet. Make a Key with Bigint, Ints, Hashtext, HashtextExtended or IntsHashtext.
type Key struct {
	kind   kind
	first  int64 // the bigint, the seed of HashtextExtended, or the first int
	second int32
	text   string
}

type kind int

const (
	none kind = iota
	bigint
	ints
	hashtext
	hashtextExtended
	intsHashtext
)

// textBytes is how long the text of a key may be.
const textBytes = 8192

// Bigint is the key of pg_advisory_lock(key).
func Bigint(key int64) Key { return Key{kind: bigint, first: key} }

// Ints is the key of pg_advisory_lock(first, second).
func Ints(first, second int32) Key { return Key{kind: ints, first: int64(first), second: second} }

// Hashtext is the key of pg_advisory_lock(hashtext(text)). The server computes the hash. The text has 1 to 8,192
// bytes, here and in the two functions below.
func Hashtext(text string) Key { return Key{kind: hashtext, text: text} }

// HashtextExtended is the key of pg_advisory_lock(hashtextextended(text, seed)).
func HashtextExtended(text string, seed int64) Key {
	return Key{kind: hashtextExtended, first: seed, text: text}
}

// IntsHashtext is the key of pg_advisory_lock(first, hashtext(text)).
func IntsHashtext(first int32, text string) Key {
	return Key{kind: intsHashtext, first: int64(first), text: text}
}

// String is the key as you write it in SQL.
func (k Key) String() string {
	quoted := argument.Shorten(k.text)
	switch k.kind {
	case bigint:
		return fmt.Sprint(k.first)
	case ints:
		return fmt.Sprintf("%d, %d", k.first, k.second)
	case hashtext:
		return fmt.Sprintf("hashtext(%s)", quoted)
	case hashtextExtended:
		return fmt.Sprintf("hashtextextended(%s, %d)", quoted, k.first)
	case intsHashtext:
		return fmt.Sprintf("%d, hashtext(%s)", k.first, quoted)
	}
	return "no key"
}

func (k Key) check() error {
	switch k.kind {
	case bigint, ints:
		return nil
	case none:
		return refuse.Invalid("key", "zero", "be made by Bigint, Ints or a function with Hashtext in its name")
	}
	return refuse.Text("key", k.text, textBytes)
}

// number is a key as the server counts it.
type number struct {
	pair   bool
	bigint int64
	a, b   int32
}

// number computes the key. The server has computed the hashes of its text.
func (k Key) number(hash int32, extended int64) number {
	switch k.kind {
	case ints:
		return number{pair: true, a: int32(k.first), b: k.second}
	case intsHashtext:
		return number{pair: true, a: int32(k.first), b: hash}
	case hashtext:
		return number{bigint: int64(hash)} // as the server widens an int
	case hashtextExtended:
		return number{bigint: extended}
	}
	return number{bigint: k.first}
}

// call is the call of an advisory lock function for the key, and its arguments.
func (n number) call(function string) (sql string, args []any) {
	if n.pair {
		return "pg_catalog." + function + "($1::int, $2::int)", []any{n.a, n.b}
	}
	return "pg_catalog." + function + "($1::bigint)", []any{n.bigint}
}

// tag is how pg_locks shows the key.
func (n number) tag() (classid, objid int64, objsubid int16) {
	if n.pair {
		return int64(uint32(n.a)), int64(uint32(n.b)), 2
	}
	return int64(uint32(n.bigint >> 32)), int64(uint32(n.bigint)), 1
}
