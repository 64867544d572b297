// Package argument describes what is wrong with an argument.
package argument

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrInvalid is both pglock.ErrInvalid and migrations.ErrInvalid.
var ErrInvalid = errors.New("pglock: invalid argument")

// SchemaBytes limits the name of a schema.
const SchemaBytes = 63

// Problem names the argument, its value and the rule it breaks. Callers convert it into a pglock.ArgumentError.
type Problem struct{ Field, Value, Rule string }

// Text refuses a text that is empty, longer than most bytes, not UTF-8, or that PostgreSQL cannot store. nil: no
// problem.
func Text(field, value string, most int) *Problem {
	switch {
	case value == "":
		return &Problem{field, "empty", fmt.Sprintf("have 1 to %d bytes", most)}
	case len(value) > most:
		return &Problem{field, fmt.Sprintf("%s (%d bytes)", Shorten(value), len(value)),
			fmt.Sprintf("have 1 to %d bytes", most)}
	case !utf8.ValidString(value):
		return &Problem{field, Shorten(value), "be valid UTF-8"}
	case strings.IndexByte(value, 0) >= 0:
		return &Problem{field, Shorten(value), "have no NUL byte"}
	}
	return nil
}

// Shorten quotes a value, or the beginning of a long one.
func Shorten(s string) string {
	if len(s) > 40 {
		return strconv.Quote(s[:40]) + "…"
	}
	return strconv.Quote(s)
}

// Process is a label for this process, "host/program[pid]", of at most most bytes.
func Process(most int) string {
	host, program, pid := processParts()
	if len(host) > 128 {
		host = host[:128]
	}
	if len(program) > 64 {
		program = program[:64]
	}
	label := fmt.Sprintf("%s/%s[%s]", host, program, pid)
	if Text("holder", label, most) != nil {
		return "pid " + pid // a host or program name that is not UTF-8
	}
	return label
}

// NameApplication gives connections with these parameters the application_name "pglock host/program[pid]", by which
// people find them in pg_stat_activity. It keeps a name that is set.
func NameApplication(parameters map[string]string) {
	const name = "application_name"
	if parameters != nil && parameters[name] == "" {
		host, program, pid := processParts()
		parameters[name] = application(host, program, pid)
	}
}

// applicationBytes is how long the server lets an application_name be.
const applicationBytes = 63

// application is the name of an application that fits. It cuts the program's name first, then the host's.
func application(host, program, pid string) string {
	room := applicationBytes - len("pglock /[]") - len(pid)
	program = program[:min(len(program), max(12, room-len(host)))]
	host = host[:min(len(host), room-len(program))]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' { // the server would write it differently
			return '?'
		}
		return r
	}, "pglock "+host+"/"+program+"["+pid+"]")
}

func processParts() (host, program, pid string) {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	return host, filepath.Base(os.Args[0]), strconv.Itoa(os.Getpid())
}
