package server

import (
	"net"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Addresses has every server that a configuration may connect to: host:port, or the path of a socket.
func Addresses(c *pgx.ConnConfig) []string {
	all := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		// pgx has the same server twice, with and without TLS
		if a := address(f.Host, f.Port); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

func address(host string, port uint16) string {
	network, path := pgconn.NetworkAddress(host, port)
	if network == "unix" {
		return path
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// Database is the name of the database that a configuration connects to. Without one the server takes the user's.
func Database(c *pgx.ConnConfig) string {
	if c.Database == "" {
		return c.User
	}
	return c.Database
}
