package protocol

import (
	"errors"
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
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) || State(err) != state {
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
