package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/migrations"
)

// The exit codes, which scripts may rely on.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitNotHeld     = 3
	ExitUnreachable = 4
	ExitSchema      = 5
	ExitPermission  = 6
	ExitAttention   = 7
	ExitInterrupted = 130
)

const ExitCodesHelp = `Exit codes:
    0  done
    1  failed
    2  the command line or an argument is wrong; nothing was done
    3  the lock does not exist or is not held, or the table is not guarded
    4  the server is away or too slow, lacks the database, or is a standby where the command needs the primary
    5  the schema is missing, older or newer than this program needs, or marked dirty
    6  the database refuses the user, or the user lacks a right
    7  doctor --strict or verify found something that needs attention
  130  interrupted

Errors go to standard error: the message, the server and database it is about, and what to try next. With -o json
or yaml an error is an object {"error", "code", "hint", "at"}. run has other exit codes: pglock-admin run --help.`

// Problem is an error as the user sees it.
type Problem struct {
	Message string `json:"error"`
	Code    int    `json:"code"`
	Hint    string `json:"hint"`
	At      *Where `json:"at,omitempty"` // nil if no server is involved
}

func (p Problem) Print(w io.Writer, format string) {
	if format != OutputTable {
		_ = WriteData(w, format, p) // if this fails, there is nowhere else to write
		return
	}
	fmt.Fprintf(w, "pglock-admin: %s\n", shown.Lines(p.Message))
	if p.At != nil {
		fmt.Fprintf(w, "at: %s\n", *p.At)
	}
	fmt.Fprintf(w, "try: %s\n", shown.Lines(p.Hint))
}

// Advised is an error with its text, its exit code and the next step.
type Advised struct {
	Text string // without that of the cause
	Err  error  // the cause, if there is one
	Code int
	Hint string

	Final bool // run leaves the code as it is
}

func (e *Advised) Error() string {
	switch {
	case e.Err == nil:
		return e.Text
	case e.Text == "":
		return Message(e.Err)
	}
	return e.Text + ": " + Message(e.Err)
}

func (e *Advised) Unwrap() error { return e.Err }

func Errorf(code int, hint, format string, args ...any) *Advised {
	return &Advised{Text: fmt.Sprintf(format, args...), Code: code, Hint: hint}
}

// UsageErrorf is an error in the command line, with what is right.
func UsageErrorf(hint, format string, args ...any) error {
	return Errorf(ExitUsage, hint, format, args...)
}

// Diagnose turns an error into what the user sees.
func (o *Options) Diagnose(ctx context.Context, err error) Problem {
	p := Problem{Message: Message(err)}
	p.Code, p.Hint = o.Advice(ctx, err)
	switch {
	case p.Code != ExitInterrupted || Is[*Advised](err) || Is[*migrations.StepError](err):
	case errors.Is(err, context.Canceled):
		p.Message = "interrupted"
	default:
		p.Message = "interrupted: " + p.Message
	}
	if o.At != nil {
		at := o.At.Now()
		p.At = &at
	}
	return p
}

// Wanted looks for the format in a command line that could not be parsed.
func Wanted(args []string) string {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.BoolP("help", "h", false, "") // unknown, it would end the search
	format := flags.StringP("output", "o", OutputTable, "")
	_ = flags.Parse(args)
	return shown.Either(slices.Contains(Outputs, *format), *format, OutputTable)
}

// WriteData writes v, which is an object, as JSON or YAML. It escapes everything that could control a terminal, of
// which the formats themselves escape only a part.
func WriteData(w io.Writer, format string, v any) error {
	if format == outputYAML {
		return writeYAML(w, v)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, escaped(string(b), format)+"\n")
	return err
}

// Silent is an exit code about which there is nothing to say.
type Silent int

func (c Silent) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
