package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pglock-dev/pglock/migrations"
)

// The exit codes, which scripts may rely on.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotHeld     = 3
	exitUnreachable = 4
	exitSchema      = 5
	exitPermission  = 6
	exitAttention   = 7
	exitInterrupted = 130
)

const exitCodesHelp = `Exit codes:
    0  done
    1  failed
    2  the command line or an argument is wrong; nothing was done
    3  the lock does not exist or is not held, or the table is not guarded
    4  the server cannot be reached, does not answer in time, has no such database, or is a standby
    5  the schema is missing, older or newer than this program needs, or marked dirty
    6  the database refuses the user, or the user lacks a right
    7  doctor --strict or verify found something that needs attention
  130  interrupted

Errors go to standard error: the message, the server and database it is about, and what to try next. With -o json
or yaml an error is an object {"error", "code", "hint", "at"}. run has other exit codes: pglock-admin run --help.`

// problem is an error as the user sees it.
type problem struct {
	Message string `json:"error"`
	Code    int    `json:"code"`
	Hint    string `json:"hint"`
	At      *where `json:"at,omitempty"` // nil if no server is involved
}

func (p problem) print(w io.Writer, format string) {
	if format != outputTable {
		_ = writeData(w, format, p) // if this fails, there is nowhere else to write
		return
	}
	fmt.Fprintf(w, "pglock-admin: %s\n", escapeText(p.Message))
	if p.At != nil {
		fmt.Fprintf(w, "at: %s\n", *p.At)
	}
	fmt.Fprintf(w, "try: %s\n", escapeText(p.Hint))
}

// advised is an error with its text, its exit code and the next step.
type advised struct {
	text string // without that of the cause
	err  error  // the cause, if there is one
	code int
	hint string

	final bool // run leaves the code as it is
}

func (e *advised) Error() string {
	switch {
	case e.err == nil:
		return e.text
	case e.text == "":
		return message(e.err)
	}
	return e.text + ": " + message(e.err)
}

func (e *advised) Unwrap() error { return e.err }

func usageErrorf(hint, format string, args ...any) error {
	return &advised{text: fmt.Sprintf(format, args...), code: exitUsage, hint: hint}
}

// diagnose turns an error into what the user sees.
func (o *options) diagnose(ctx context.Context, err error) problem {
	p := problem{Message: message(err)}
	p.Code, p.Hint = o.advice(ctx, err)
	var own *advised
	var step *migrations.StepError
	switch {
	case p.Code != exitInterrupted || errors.As(err, &own) || errors.As(err, &step):
	case errors.Is(err, context.Canceled):
		p.Message = "interrupted"
	default:
		p.Message = "interrupted: " + p.Message
	}
	if o.at != nil {
		at := o.at.now()
		p.At = &at
	}
	return p
}

// wanted looks for the format in a command line that could not be parsed.
func wanted(args []string) string {
	for i, a := range args {
		value := ""
		switch {
		case a == "--":
			return outputTable
		case (a == "-o" || a == "--output") && i+1 < len(args):
			value = args[i+1]
		case strings.HasPrefix(a, "--output="):
			value = strings.TrimPrefix(a, "--output=")
		case strings.HasPrefix(a, "-o"):
			value = strings.TrimPrefix(a[len("-o"):], "=")
		}
		if slices.Contains(outputs, value) {
			return value
		}
	}
	return outputTable
}

// writeData writes v, which is an object, as JSON or YAML. It escapes everything that could control a terminal, of
// which the formats themselves escape only a part.
func writeData(w io.Writer, format string, v any) error {
	if format == outputYAML {
		return writeYAML(w, v)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, escapeJSON(string(b))+"\n")
	return err
}

// silent is an exit code about which there is nothing to say.
type silent int

func (c silent) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
