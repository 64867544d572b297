// Package pgserver runs throwaway PostgreSQL servers and knows where one can come from.
//
// A server that Start made belongs to the process that started it. Stop ends it and removes its folder; if the
// process ends without Stop, however it ends, a minder process does the same.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

var (
	// ErrUnsupported is Start's error on systems where it cannot mind a server.
	ErrUnsupported = errors.New("pgserver: servers can be started on Unix systems only; give a connection string")

	// ErrNotOurs is the error of Kill and Restart for a server that somebody else started.
	ErrNotOurs = errors.New("pgserver: the server was not started here")

	// ErrStopped is the error of Kill and Restart after Stop.
	ErrStopped = errors.New("pgserver: the server was stopped and its folder removed")
)

// Options say how to start a server.
type Options struct {
	// Programs are the server's programs. Required.
	Programs pgprograms.Programs

	// Kind is the result of Server.Kind: KindPrograms or KindDownload. Defaults to KindPrograms.
	Kind Kind

	// Settings are for postgresql.conf, after the defaults of a throwaway server (fsync=off, no Unix sockets,
	// max_connections=400). The address and the port cannot be set. Defaults to none.
	Settings map[string]string

	// InMemory keeps the server's folder in memory, if the system has room there: making a file is cheap there, and a
	// data folder has a thousand. Defaults to the folder for temporary files.
	InMemory bool
}

// Server is a PostgreSQL server: one that Start started, or one known only by its connection string. Its methods may
// be called concurrently.
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

// Kind says where the server came from.
func (s *Server) Kind() Kind { return s.kind }

// URL is a connection string for the server's postgres database. If Start made the server, its user is a superuser;
// otherwise it is the given string.
func (s *Server) URL() string { return s.url }

// Description names the version and the place for people, without a password: "PostgreSQL 15.18 from
// /usr/lib/postgresql/15/bin".
func (s *Server) Description() string { return s.description }

// UnsetPG removes the PG* variables from the environment of this process and of those that it starts from now on. They
// are meant for another server: pgx adds them to the URL of every server. It is for programs that use servers of their
// own alone.
func UnsetPG() error {
	var errs []error
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "PG") && !strings.HasPrefix(name, "PGLOCK_") {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	return errors.Join(errs...)
}

// Ending are the signals that ask a program to end, which then has to tidy up what it made on a server. A terminal that
// goes sends SIGHUP; a program that was started to ignore that, as nohup does, does not hear of it.
func Ending() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// connectTimeout limits the first connection to a server given by its connection string.
const connectTimeout = 10 * time.Second

// Connect checks the server that somebody else runs at connString. The error does not contain the password.
func Connect(ctx context.Context, connString string) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, connString)
	if err != nil {
		return nil, fmt.Errorf("pgserver: connection string: %w", err)
	}
	defer conn.Close(ctx)
	var version string
	if err := conn.QueryRow(ctx,
		"select split_part(current_setting('server_version'), ' ', 1)").Scan(&version); err != nil {
		return nil, fmt.Errorf("pgserver: connection string: %w", err)
	}
	at := net.JoinHostPort(conn.Config().Host, strconv.Itoa(int(conn.Config().Port)))
	return Known(KindURL, connString, fmt.Sprintf("PostgreSQL %s at %s", version, at)), nil
}
