package pgserver

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// connectTimeout bounds the look at a server that was named by its connection
// string.
const connectTimeout = 10 * time.Second

// Connect looks at the server that somebody else runs at connString. The error
// does not hold the password.
func Connect(ctx context.Context, connString string) (*Server, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("pgserver: connection string: %w", err)
	}
	version, err := version(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("pgserver: connection string: %w", err)
	}
	at := config.Host
	if config.Port != 0 {
		at = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	}
	return Known(KindURL, connString, fmt.Sprintf("PostgreSQL %s at %s", version, at)), nil
}

// Known describes a server that somebody else runs and ends.
func Known(kind Kind, connString, description string) *Server {
	return &Server{kind: kind, url: connString, description: description}
}

func version(ctx context.Context, config *pgx.ConnConfig) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var version string
	err = conn.QueryRow(ctx, "select split_part(current_setting('server_version'), ' ', 1)").Scan(&version)
	return version, err
}
