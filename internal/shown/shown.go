// Package shown writes texts from outside, such as the names of locks and the labels of holders, so that people can
// read and paste them. Whatever such a text contains, it controls neither a terminal nor a shell.
package shown

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Name writes a lock's name so that somebody can paste it into a shell as an argument of pglock-admin. Whatever the
// name is, it cannot control the terminal, nor make a shell do anything. Some shells give a backslash a meaning even
// between quotes.
func Name(name string) string {
	if name == "" || strings.HasPrefix(name, "-") || strings.HasPrefix(name, `"`) || strings.Contains(name, `\`) ||
		!AllPrint(name) {
		return "'" + Quoted(name) + "'"
	}
	return Argument(name)
}

// Quoted writes a name in double quotes, without anything that has a meaning between a shell's single quotes.
func Quoted(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, name[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < utf8.RuneSelf && (strings.ContainsRune(`'"\`, r) || !strconv.IsPrint(r)):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			write(&b, r)
		}
		i += size
	}
	b.WriteByte('"')
	return b.String()
}

// Argument quotes an argument of a shell's command, if it needs quotes.
func Argument(s string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,"
	if s != "" && s[0] != '=' && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(safe, r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Query quotes a statement as an argument of a shell's command: in double quotes if that reads better, because a
// statement often has single quotes.
func Query(sql string) string {
	if strings.Contains(sql, "'") && !strings.ContainsAny(sql, "\"$`\\!") {
		return `"` + sql + `"`
	}
	return Argument(sql)
}

// Text makes a text from outside safe to show: it quotes and escapes a text that does not print, or that looks quoted.
func Text(s string) string {
	if s == "" || strings.TrimSpace(s) != s || s[0] == '"' || !AllPrint(s) {
		return Quote(s)
	}
	return s
}

// Quote is strconv.Quote, which leaves unseen characters as they are.
func Quote(s string) string {
	var b strings.Builder
	for _, r := range strconv.Quote(s) {
		write(&b, r)
	}
	return b.String()
}

// write escapes a character that does not print.
func write(b *strings.Builder, r rune) {
	if Prints(r) {
		b.WriteRune(r)
	} else {
		b.WriteString(Escaped(r))
	}
}

// Escaped is a character as Go and YAML escape it.
func Escaped(r rune) string {
	if r <= 0xffff {
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// Word writes a name within a sentence, in quotes if it could be read as a part of the sentence.
func Word(s string) string {
	if s == "" || Argument(s) != s {
		return Quote(s)
	}
	return s
}

// unseen are characters that count as printing and show nothing: fillers and selectors of variants.
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, {Lo: 0x115f, Hi: 0x1160, Stride: 1}, {Lo: 0x17b4, Hi: 0x17b5, Stride: 1},
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, {Lo: 0x3164, Hi: 0x3164, Stride: 1}, {Lo: 0xfe00, Hi: 0xfe0f, Stride: 1},
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0xe0100, Hi: 0xe01ef, Stride: 1}},
}

// Prints reports whether a character shows something, and nothing but itself.
func Prints(r rune) bool { return strconv.IsPrint(r) && !unicode.Is(unseen, r) }

// AllPrint reports whether a text is of characters that print.
func AllPrint(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !Prints(r) })
}

// SQL writes a text as a literal of PostgreSQL that prints, whatever standard_conforming_strings is.
func SQL(s string) string {
	if AllPrint(s) && !strings.Contains(s, `\`) {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	var b strings.Builder
	b.WriteString("E'")
	for _, r := range s { // a text of the server is valid UTF-8
		switch {
		case r == '\'':
			b.WriteString("''")
		case r == '\\':
			b.WriteString(`\\`)
		default:
			write(&b, r)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// Age rounds a duration for people.
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 24*time.Hour:
		return Duration(d.Round(time.Second))
	}
	return Duration(d.Round(time.Hour))
}

// Duration writes a duration in days, hours, minutes and seconds, as pglock-admin reads it.
func Duration(d time.Duration) string {
	if d < 24*time.Hour {
		return shortened(d.String())
	}
	days := strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	if rest := d % (24 * time.Hour); rest > 0 {
		days += shortened(rest.String())
	}
	return days
}

// shortened leaves out minutes and seconds that are 0.
func shortened(s string) string {
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// Lines escapes what does not print in a text of several lines.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if !AllPrint(strings.ReplaceAll(line, "\t", " ")) {
			lines[i] = Line(line)
		}
	}
	return strings.Join(lines, "\n")
}

// Words are the texts of a kind of words; nil if there are none.
func Words[T ~string](some []T) (words []string) {
	for _, one := range some {
		words = append(words, string(one))
	}
	return words
}

// Either chooses one of two texts.
func Either(is bool, text, otherwise string) string {
	if is {
		return text
	}
	return otherwise
}

// Line escapes what does not print in a finished sentence, and what would begin another line.
func Line(s string) string {
	if AllPrint(s) {
		return s
	}
	q := Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
