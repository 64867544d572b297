package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

const namesHelp = `You can paste a NAME as it is shown: plain, or in '…' where a shell needs that. A name that begins with - or ", or
that holds a backslash or something that does not print, is shown and read as '"…"' with escapes such as \x1b and \n.
After -- a NAME is taken as it is, which is what scripts need:

    pglock-admin show -- "$name"`

// shellName writes a lock's name so that somebody can paste it into a shell as a NAME. Whatever the name is, it cannot
// control the terminal, nor make a shell do anything. Some shells give a backslash a meaning even between quotes.
func shellName(name string) string {
	if name == "" || strings.HasPrefix(name, "-") || strings.HasPrefix(name, `"`) || strings.Contains(name, `\`) || !allPrint(name) {
		return "'" + quotedName(name) + "'"
	}
	return shellQuote(name)
}

// quotedName writes a name in double quotes, without anything that has a meaning between a shell's single quotes.
func quotedName(name string) string {
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
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += size
	}
	b.WriteByte('"')
	return b.String()
}

// nameOf reads the nth argument of a command as the name of a lock.
func nameOf(cmd *cobra.Command, args []string, n int) (string, error) {
	arg := args[n]
	if dash := cmd.ArgsLenAtDash(); dash >= 0 && n >= dash || !strings.HasPrefix(arg, `"`) {
		return arg, nil
	}
	name, err := unquoted(arg)
	if err != nil {
		return "", usageErrorf(fmt.Sprintf("%s -- %s, for a name that really begins so", cmd.CommandPath(), shellQuote(escapeText(arg))),
			`NAME is %s: a name that begins with " must be quoted as in the output of list`, quotedName(arg))
	}
	return name, nil
}

// unquoted reads a name as it is shown.
func unquoted(name string) (string, error) {
	if !strings.HasPrefix(name, `"`) {
		return name, nil
	}
	return strconv.Unquote(name)
}

// shellQuote quotes an argument for a command that the advice suggests.
func shellQuote(s string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,"
	if s != "" && s[0] != '=' && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(safe, r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
