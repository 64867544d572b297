package protocol

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs of the protocol. The migrations give their meanings.
const (
	StateExpired       = "LK001"
	StateStaleToken    = "LK002"
	StateNotHolder     = "LK003"
	StateDeadlock      = "LK004"
	StateIsolation     = "LK005"
	StateNotHeld       = "LK006"
	StateOtherDatabase = "LK007"
	StateSpentGrantID  = "LK008"
	StateLeftFence     = "LK009"
	StateOtherLimit    = "LK010"
	StateUnfenced      = "LK011"
	StateKeyTooOld     = "LK012"
)

// State returns the SQLSTATE of a server's error, from any driver whose error type has a method SQLState, or "".
func State(err error) string {
	if e, is := errors.AsType[stateError](err); is {
		return e.SQLState()
	}
	return ""
}

// stateError is an error with an SQLSTATE.
type stateError interface {
	error
	SQLState() string
}

// The fields of a server's error that the protocol uses.
const (
	FieldSeverity   = 'S' // in English where a driver has that, else as lc_messages says
	FieldDetail     = 'D'
	FieldMessage    = 'M'
	FieldSchema     = 's'
	FieldTable      = 't'
	FieldColumn     = 'c'
	FieldConstraint = 'n'
	FieldWhere      = 'W'
	FieldRoutine    = 'R' // of the server's source
)

// Field returns a field of a server's error, from lib/pq, or from any driver whose errors have a method SQLState and
// fields with pgx's names, as in each version of pgx; or "".
func Field(err error, name byte) string {
	e, is := errors.AsType[stateError](err)
	if !is {
		return ""
	}
	if pq, is := e.(interface{ Get(byte) string }); is {
		return pq.Get(name)
	}
	v := reflect.Indirect(reflect.ValueOf(e))
	if v.Kind() != reflect.Struct {
		return ""
	}
	for _, field := range fieldNames[name] {
		if f := v.FieldByName(field); f.Kind() == reflect.String && f.String() != "" {
			return f.String()
		}
	}
	return ""
}

// fieldNames are pgx's names. Older versions of pgx, and poolers such as pgpool-II, give no SeverityUnlocalized.
var fieldNames = map[byte][]string{FieldSeverity: {"SeverityUnlocalized", "Severity"}, FieldDetail: {"Detail"},
	FieldMessage: {"Message"}, FieldSchema: {"SchemaName"}, FieldTable: {"TableName"}, FieldColumn: {"ColumnName"},
	FieldConstraint: {"ConstraintName"}, FieldWhere: {"Where"}, FieldRoutine: {"Routine"}}

// Detail returns the value of key=value in the DETAIL of a server's error.
func Detail(err error, key string) string {
	detail := Field(err, FieldDetail)
	v, _ := strings.CutPrefix(detail, key+"=")
	return v
}

// Message returns the text of a server's error, without pgx's additions.
func Message(err error) string {
	if message := Field(err, FieldMessage); message != "" {
		return message
	}
	return err.Error()
}

// Transient reports whether the server undid the statement for a reason that a repetition may not meet: a
// serialization failure, a deadlock, lock_timeout, or a cancelled statement. Nothing was changed, unless the statement
// was a COMMIT (RolledBack).
func Transient(err error) bool {
	switch State(err) {
	case "40001", "40P01", "55P03", "57014":
		return true
	}
	return false
}

// LockedOut reports whether the server has waited for another transaction for as long as it may. Nothing was changed.
func LockedOut(err error) bool { return State(err) == "55P03" }

// ConnectionLost reports whether the connection ended, or there was none, rather than that the server refused: the
// statement may have been carried out.
func ConnectionLost(err error) bool {
	if err == nil {
		return false
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch state := State(err); {
	case state == "", errors.Is(err, ErrUnconfirmed):
		return true
	case strings.HasPrefix(state, "57P"), strings.HasPrefix(state, "08"), state == stateNoSlot:
		return true // terminated by an administrator, a crash, a starting server, a broken protocol, no free slot
	case severity(err) == "PANIC": // a crash, whatever was refused
		return true
	case !connecting && severity(err) != "FATAL": // the server, or a pooler, goes on
		return false
	default: // poolers have many ways to say that they are full, and drivers to say that a login was refused
		refused := func(class string) bool { return strings.HasPrefix(state, class) }
		return !slices.ContainsFunc(loginRefusals, refused)
	}
}

// Refused reports whether the server has refused what it was asked to do, has done none of it, and goes on. An error
// whose driver tells no severity, or has it in another language, is a refusal only if it is one of the protocol's own.
func Refused(err error) bool {
	return !ConnectionLost(err) && (severity(err) == "ERROR" || strings.HasPrefix(State(err), "LK"))
}

// RolledBack reports whether the server itself is known to have refused a COMMIT, which was then rolled back. A server
// that ends the connection instead, for an administrator or in a crash, may have committed before that, whatever its
// last words. So may one that was to cancel the statement: if it logs how long a COMMIT took, it heeds that after it.
func RolledBack(err error) bool {
	return errors.Is(err, pgx.ErrTxCommitRollback) || Refused(err) && State(err) != "57014"
}

// ReadOnly reports whether a standby has refused, or a session that may only read. Nothing was changed.
func ReadOnly(err error) bool {
	state := State(err)
	return state == stateReadOnly || state == "0A000" && slices.Contains(standbyRefuses, Field(err, FieldRoutine))
}

// severity is FATAL if the server, or a pooler before it, has ended the connection with this error, and PANIC if it has
// crashed: what it was doing may be done.
func severity(err error) string { return Field(err, FieldSeverity) }

// stateNoSlot is the refusal of a connection because of max_connections, or of the limit of a role or a database.
const stateNoSlot = "53300"

// stateReadOnly is the refusal of a standby, and of a session that may only read.
const stateReadOnly = "25006"

// standbyRefuses are the routines in which a standby refuses a transaction that is serializable by the session's
// default or by BEGIN, and one that is READ WRITE: these have no SQLSTATE of their own.
var standbyRefuses = []string{"GetSerializableTransactionSnapshot", "call_enum_check_hook", "call_bool_check_hook"}

// loginRefusals are the classes of the refusals of a connection that another attempt does not change: the password, the
// database, the settings, the rights.
var loginRefusals = []string{"28", "3D", "22", "42"}
