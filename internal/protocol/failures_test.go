package protocol

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// refusal is what a client gets that connects to a server, or a pooler, which refuses it with that SQLSTATE.
func refusal(t *testing.T, state string) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		server := pgproto3.NewBackend(conn, conn)
		if _, err := server.ReceiveStartupMessage(); err == nil {
			server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: state, Message: "no"})
			_ = server.Flush()
		}
	}()
	_, err = pgconn.Connect(t.Context(), "postgres://u@"+l.Addr().String()+"/d?sslmode=disable")
	if _, is := errors.AsType[*pgconn.ConnectError](err); !is || State(err) != state {
		t.Fatalf("a connection that is refused with %s: %v", state, err)
	}
	return err
}

// A server that has no slot for a connection says nothing about the others that there are.
func TestALackOfSlotsIsALostConnectionAndARefusedLoginIsNot(t *testing.T) {
	refused := func(state string) error { return &pgconn.PgError{Severity: "ERROR", Code: state} }
	for _, tc := range []struct {
		name string
		err  error
		lost bool
	}{
		{"no error", nil, false},
		{"a reset line", errors.New("reset"), true},
		{"terminated", refused("57P01"), true},
		{"starting", refusal(t, "57P03"), true},
		{"too many clients, or the slots that are left are reserved", refusal(t, "53300"), true},
		{"too many connections of the role, by another driver", refused("53300"), true},
		{"a pooler has no room", refusal(t, "08P01"), true},
		{"another pooler has no room", refusal(t, "XX000"), true},
		{"no memory for a process", refusal(t, "53200"), true},
		{"no memory for a statement", refused("53200"), false},
		{"a statement that fails", refused("XX000"), false},
		{"a statement that ends the connection", &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "XX000"}, true},
		{"a pooler that gives one severity", &pgconn.PgError{Severity: "FATAL", Code: "XX000"}, true},
		{"no room for the log", &pgconn.PgError{SeverityUnlocalized: "PANIC", Code: "53100"}, true},
		{"the password is wrong", refusal(t, "28P01"), false},
		{"the database is missing", refusal(t, "3D000"), false},
		{"no right to connect", refusal(t, "42501"), false},
		{"a setting is wrong", refusal(t, "22023"), false},
	} {
		if got := ConnectionLost(tc.err); got != tc.lost {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.lost)
		}
	}
}

// pgx4 is what errors of pgx are in version 4.
type pgx4 struct{ Severity, Code, Detail, ColumnName, ConstraintName string }

func (e *pgx4) Error() string    { return e.Code }
func (e *pgx4) SQLState() string { return e.Code }

// libpq is what errors of lib/pq are.
type libpq map[byte]string

func (e libpq) Error() string        { return e['C'] }
func (e libpq) SQLState() string     { return e['C'] }
func (e libpq) Get(name byte) string { return e[name] }

// bare is an error that has no more than its SQLSTATE.
type bare string

func (e bare) Error() string    { return string(e) }
func (e bare) SQLState() string { return string(e) }

// The fields of an error are known of each driver that has them.
func TestFieldsAreReadFromTheErrorsOfAnyDriver(t *testing.T) {
	for what, err := range map[string]error{
		"pgx": &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "LK002", Detail: "last_token=7",
			ColumnName: "6", ConstraintName: "x"},
		"pgx 4":  &pgx4{Severity: "ERROR", Code: "LK002", Detail: "last_token=7", ColumnName: "6", ConstraintName: "x"},
		"lib/pq": libpq{'S': "ERROR", 'C': "LK002", 'D': "last_token=7", 'c': "6", 'n': "x"},
	} {
		err = fmt.Errorf("commit: %w", err)
		for name, want := range map[byte]string{FieldSeverity: "ERROR", FieldDetail: "last_token=7", FieldColumn: "6",
			FieldConstraint: "x", FieldTable: "", 'X': ""} {
			if got := Field(err, name); got != want {
				t.Errorf("%s: field %c is %q, want %q", what, name, got, want)
			}
		}
		if got := Detail(err, "last_token"); got != "7" {
			t.Errorf("%s: the last token is %q", what, got)
		}
	}
	for what, err := range map[string]error{"an SQLSTATE alone": bare("LK002"), "none": errors.New("reset"),
		"nil": nil} {
		if got := Field(err, FieldDetail); got != "" {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// A COMMIT was refused only where that is known: a driver may tell no severity, or one that the server has translated.
func TestOnlyWhatTheServerIsKnownToHaveRefusedIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		refused bool
	}{
		{"nil", nil, false},
		{"a reset line", errors.New("reset"), false},
		{"a constraint", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"}, true},
		{"a constraint, by an old server", &pgconn.PgError{Severity: "ERROR", Code: "23505"}, true},
		{"a constraint, by pgx 4", &pgx4{Severity: "ERROR", Code: "23505"}, true},
		{"a constraint, by lib/pq", libpq{'S': "ERROR", 'C': "23505"}, true},
		{"a lost server, by pgx 4", &pgx4{Severity: "FATAL", Code: "XX000"}, false},
		{"a lost server, by lib/pq", libpq{'S': "FATAL", 'C': "XX000"}, false},
		{"a lost server, by lib/pq in Russian", libpq{'S': "ВАЖНО", 'C': "XX000"}, false},
		{"who knows what", bare("XX000"), false},
		{"a lost lease", bare(StateNotHolder), true},
	} {
		if got := Refused(tc.err); got != tc.refused {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.refused)
		}
	}
}
