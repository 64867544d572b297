package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// Message is the text of an error for somebody who sees the server and the advice next to it, and does not know the
// code. It says each thing once, without names of packages.
func Message(err error) string {
	var own *Advised
	var late timeUp
	var connect *pgconn.ConnectError
	var step *migrations.StepError
	var right *migrations.RightError
	var dirty *migrations.DirtyError
	var guarded *migrations.GuardedError
	var schema *pglock.SchemaError
	var argument *pglock.ArgumentError
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &own):
		return own.Error()
	case errors.As(err, &step) && step.Unknown:
		return fmt.Sprintf("it is unknown whether schema %s went from %s to %s: %s", shown.Word(step.Schema),
			VersionText(step.From), VersionText(step.To), ended(err, step.Err))
	case errors.As(err, &step):
		return fmt.Sprintf("schema %s stays %s, because the step to %s was rolled back: %s", shown.Word(step.Schema),
			VersionText(step.From), VersionText(step.To), ended(err, step.Err))
	case errors.Is(err, migrations.ErrBusy):
		return "another program is migrating this schema: " + ended(err, err)
	case errors.As(err, &late):
		return late.Error()
	case errors.As(err, &connect):
		return fmt.Sprintf("cannot connect as user %s: %s", shown.Word(connect.Config.User), refusals(connect.Unwrap()))
	case errors.As(err, &right) && right.Have < 0:
		return fmt.Sprintf("user %s cannot read schema %s: it lacks %s", shown.Word(right.User),
			shown.Word(right.Schema),
			right.Lacks)
	case errors.As(err, &right):
		return fmt.Sprintf("schema %s is %s, and user %s cannot change it: it lacks %s", shown.Word(right.Schema),
			VersionText(right.Have), shown.Word(right.User), right.Lacks)
	case errors.As(err, &dirty):
		return fmt.Sprintf("schema %s is %s, and golang-migrate has recorded %s for it: one of them was changed by "+
			"hand",
			shown.Word(dirty.Schema), VersionText(dirty.Before), VersionText(max(dirty.Version, 0)))
	case errors.As(err, &guarded):
		return "tables are guarded: " + guarded.Tables
	case errors.Is(err, migrations.ErrForeign):
		return "the schema was made by another migration tool"
	case errors.As(err, &schema) && schema.Have == 0:
		return fmt.Sprintf("schema %s is missing, or does not contain pglock", shown.Word(schema.Schema))
	case errors.As(err, &schema):
		return fmt.Sprintf("schema %s has version %d, this program needs %d", shown.Word(schema.Schema), schema.Have,
			schema.Need)
	case errors.As(err, &argument):
		return fmt.Sprintf("%s is %s: it must %s", argument.Field, argument.Value, argument.Rule)
	case errors.As(err, &pgErr):
		return serverText(pgErr)
	case errors.Is(err, errStandby):
		return errStandby.Error()
	case errors.Is(err, pglock.ErrReadOnly):
		return "the server accepts no writes: it is a standby, or the session is read-only"
	}
	s := strings.TrimSpace(err.Error())
	if Lost(err) {
		s = "the connection was lost: " + Innermost(err).Error()
	}
	for _, p := range []string{migrations.ErrInvalid.Error() + ": ", "pglock: ", "migrations: ", "fencedstore: "} {
		s = strings.TrimPrefix(s, p)
	}
	return s
}

func Innermost(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// VersionText is the version of a schema in words; 0 is none.
func VersionText(version int) string {
	return shown.Either(version == 0, "missing", fmt.Sprintf("version %d", version))
}

// serverText is what the server said. Its hint is advice.
func serverText(e *pgconn.PgError) string {
	s := e.Message
	if e.Detail != "" && !strings.HasPrefix(e.Code, "LK") { // the detail of pglock's own errors is for programs
		s += " (" + strings.TrimSuffix(e.Detail, ".") + ")"
	}
	return fmt.Sprintf("%s (SQLSTATE %s)", s, e.Code)
}

// ended tells why something ended: the time was up, somebody interrupted it, or the cause.
func ended(err, cause error) string {
	var late timeUp
	switch {
	case errors.As(err, &late):
		return late.Error()
	case errors.Is(cause, context.Canceled):
		return "interrupted"
	}
	return Message(cause)
}

// refusal is one reason why connecting failed.
type refusal struct{ address, reason string }

// refusals lists each reason once. If there were several addresses, it names them.
func refusals(err error) string {
	var texts []string
	all := refusalsOf(err)
	for _, r := range all {
		text := r.reason
		if r.address != "" && slices.ContainsFunc(all, func(other refusal) bool { return other.address != r.address }) {
			text = r.address + ": " + text
		}
		if !slices.Contains(texts, text) { // tried with TLS and without
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
}

// refusalsOf finds what the server, the network or the resolver said.
func refusalsOf(err error) []refusal {
	switch e := err.(type) { //nolint:errorlint // this is the unwrapping
	case *pgconn.PgError:
		return []refusal{{"", serverText(e)}}
	case *net.DNSError:
		return []refusal{{"", e.Error()}}
	case *net.OpError:
		if e.Addr != nil && !Is[*net.DNSError](e.Err) {
			return []refusal{{e.Addr.String(), e.Err.Error()}}
		}
	case interface{ Unwrap() []error }:
		var all []refusal
		for _, one := range e.Unwrap() {
			all = append(all, refusalsOf(one)...)
		}
		return all
	}
	if next := errors.Unwrap(err); next != nil {
		return refusalsOf(next)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return []refusal{{"", "no answer in time"}} // of connect_timeout
	}
	return []refusal{{"", err.Error()}}
}

// StateOf is the SQLSTATE of an error, or "".
func StateOf(err error) string {
	if pgErr, is := errors.AsType[*pgconn.PgError](err); is {
		return pgErr.Code
	}
	return ""
}

// Is reports whether an error is or wraps one of a type.
func Is[T error](err error) bool {
	_, is := errors.AsType[T](err)
	return is
}
