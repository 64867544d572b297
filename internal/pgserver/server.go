// Package pgserver runs throwaway PostgreSQL servers and knows where one can come from.
//
// A server that Start made belongs to the process that started it. Stop ends it and removes its folder; when the process
// ends without Stop, however it ends, a minder process does the same.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

var (
	// ErrUnsupported is what Start gives on systems where it has no way to mind a server.
	ErrUnsupported = errors.New("pgserver: servers can be started on Unix systems only; give a connection string")

	// ErrNotOurs is what Kill and Restart give for a server that somebody else started.
	ErrNotOurs = errors.New("pgserver: the server was not started here")

	// ErrStopped is what Kill and Restart give after Stop.
	ErrStopped = errors.New("pgserver: the server was stopped and its folder removed")
)

// Options say how to start a server.
type Options struct {
	// Programs are the server's programs. Required, unless there is a Template.
	Programs pgprograms.Programs

	// Template has the data folder of which the server gets a copy. Defaults to a new one.
	Template *Template

	// Kind is what Server.Kind tells: KindPrograms or KindDownload. Defaults to KindPrograms.
	Kind Kind

	// Settings are for postgresql.conf, after the defaults of a throwaway server (fsync=off, no Unix sockets,
	// max_connections=200). The address and the port cannot be set. Defaults to none.
	Settings map[string]string

	// InMemory keeps the server's folder in memory, where the system has room for it: making a file is cheap there, and a data
	// folder has a thousand. Defaults to the folder for temporary files.
	InMemory bool
}

// Server is a PostgreSQL server: one that Start started, or one that is known by its connection string only. Its methods
// may be called concurrently.
type Server struct {
	kind        Kind
	url         string
	description string
	*process
}

// Known describes a server that somebody else runs and ends.
func Known(kind Kind, connString, description string) *Server {
	return &Server{kind, connString, description, &process{over: ErrNotOurs}}
}

// Kind tells where the server came from.
func (s *Server) Kind() Kind { return s.kind }

// URL is a connection string for the server's postgres database. For a server that Start made its user is a superuser; for
// another it is the string that was given.
func (s *Server) URL() string { return s.url }

// Description names the version and the place for people, without a password: "PostgreSQL 15.18 from
// /usr/lib/postgresql/15/bin".
func (s *Server) Description() string { return s.description }

// connectTimeout bounds the look at a server that was named by its connection string.
const connectTimeout = 10 * time.Second

// Connect looks at the server that somebody else runs at connString. The error does not hold the password.
func Connect(ctx context.Context, connString string) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, connString)
	if err != nil {
		return nil, fmt.Errorf("pgserver: connection string: %w", err)
	}
	defer conn.Close(ctx)
	var version string
	if err := conn.QueryRow(ctx, "select split_part(current_setting('server_version'), ' ', 1)").Scan(&version); err != nil {
		return nil, fmt.Errorf("pgserver: connection string: %w", err)
	}
	at := net.JoinHostPort(conn.Config().Host, strconv.Itoa(int(conn.Config().Port)))
	return Known(KindURL, connString, fmt.Sprintf("PostgreSQL %s at %s", version, at)), nil
}
