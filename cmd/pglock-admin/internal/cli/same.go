package cli

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/shown"
)

// Same gives the flags that a suggested command needs to reach the same schema of the same database, without a
// password.
func (o *Options) Same() string {
	s := ""
	if o.Schema != "" && o.Schema != DefaultSchema {
		s = " --schema " + shown.Argument(o.Schema)
	}
	if o.DatabaseURL != "" && o.Config != nil {
		s += " --database-url " + shown.Argument(WithoutPassword(o.DatabaseURL, o.Config.ConnConfig))
	}
	return s
}

// Elsewhere writes a command for another database of the server. It names the variable that has the connection string
// where that works, and so keeps the password without showing it.
func (o *Options) Elsewhere(command, database string) string {
	if o.DatabaseURL == "" && o.Config != nil {
		given, now := o.Getenv("DATABASE_URL"), o.Config.ConnConfig.Database
		// What a shell does with ${DATABASE_URL%/now*}: it cuts off the shortest end that begins so.
		at := strings.LastIndex(given, "/"+now)
		if at > 0 && strings.HasPrefix(given, "postgres") && plainWord.MatchString(now) &&
			plainWord.MatchString(database) {
			rest := given[at+1+len(now):]
			there, err := pgx.ParseConfig(given[:at] + "/" + database + rest)
			c := o.Config.ConnConfig
			if err == nil && (rest == "" || plainQuery.MatchString(rest) && !strings.Contains(rest, "password")) &&
				there.Database == database &&
				there.Host == c.Host && there.Port == c.Port && there.User == c.User && there.Password == c.Password {
				schema := Options{Schema: o.Schema}
				return fmt.Sprintf(`export DATABASE_URL="${DATABASE_URL%%/%s*}/%s%s"; %s%s`, now, database, rest,
					command, schema.Same())
			}
		}
	}
	return command + o.sameBut(database)
}

// There writes a command for another schema or another database of the server; "" is the same.
func (o *Options) There(command, schema, database string) string {
	there := *o
	there.Schema = cmp.Or(schema, o.Schema)
	if database != "" {
		return there.Elsewhere(command, database)
	}
	return command + there.Same()
}

// Texts that mean themselves between double quotes, and in a pattern.
var (
	plainWord  = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	plainQuery = regexp.MustCompile(`^\?[A-Za-z0-9_.,:=&/%+-]*$`)
)

// LeavesOut reports whether a command lacks the password that the user gave in the connection string.
func (o *Options) LeavesOut(command string) bool {
	given := o.url()
	if given == "" || o.Config == nil || strings.Contains(command, "DATABASE_URL") {
		return false
	}
	asks := strings.Contains(command, "--database-url ") || strings.HasPrefix(command, "psql ")
	return asks && WithoutPassword(given, o.Config.ConnConfig) != given &&
		o.Config.ConnConfig.Password != o.Getenv("PGPASSWORD")
}

// sameBut is same for another database of the server.
func (o *Options) sameBut(database string) string {
	if o.Config == nil {
		return ""
	}
	c := *o.Config.ConnConfig
	c.Database = database
	there := Options{Schema: o.Schema, Config: o.Config}
	s := there.Same()
	if o.url() == "" {
		return s + " --database-url " + shown.Argument("dbname="+valueText(database))
	}
	if u, err := url.Parse(WithoutPassword(o.url(), o.Config.ConnConfig)); err == nil &&
		strings.HasPrefix(u.Scheme, "postgres") {
		u.Path, u.RawPath = "/"+database, ""
		query := u.Query()
		query.Del("dbname")
		query.Del("database")
		u.RawQuery = query.Encode()
		return s + " --database-url " + shown.Argument(u.String())
	}
	return s + " --database-url " + shown.Argument(plainest(&c))
}

// Psql is the command that leads to the same database.
func (o *Options) Psql() string {
	given := o.url()
	if given == "" || o.Config == nil {
		return "psql"
	}
	for _, own := range []string{"pool_", "default_query_exec_mode", "statement_cache_capacity",
		"description_cache_capacity"} {
		if strings.Contains(given, own) { // of this library alone: psql refuses it
			return "psql " + shown.Argument(plainest(o.Config.ConnConfig))
		}
	}
	if o.DatabaseURL == "" {
		return `psql "$DATABASE_URL"`
	}
	return "psql " + shown.Argument(WithoutPassword(o.DatabaseURL, o.Config.ConnConfig))
}

var passwords = regexp.MustCompile(`(?i)\b(ssl)?password\s*=\s*('(\\.|[^'\\])*'|(\\.|[^'\s\\])*)\s*`)

// WithoutPassword removes the passwords from a connection string. If it cannot tell them from the rest, it writes a new
// string that leads to the same database.
func WithoutPassword(connString string, c *pgx.ConnConfig) string {
	s := strings.TrimSpace(passwords.ReplaceAllString(connString, ""))
	if strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://") {
		u, err := url.Parse(connString)
		if err != nil {
			return plainest(c)
		}
		if _, there := u.User.Password(); there {
			u.User = url.User(u.User.Username())
		}
		u.RawQuery = strings.Join(slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(parameter string) bool {
			return strings.HasPrefix(parameter, "password=") || strings.HasPrefix(parameter, "sslpassword=")
		}), "&")
		s = u.String()
	}
	if c.Password != "" && strings.Contains(s, c.Password) {
		return plainest(c)
	}
	return s
}

// plainest names every server, and which of them is wanted: after a failover the first is not the one that was asked.
func plainest(c *pgx.ConnConfig) string {
	servers := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}, c.Fallbacks...)
	// pgx has the same server twice, with and without TLS
	servers = slices.CompactFunc(servers, func(a, b *pgconn.FallbackConfig) bool {
		return a.Host == b.Host && a.Port == b.Port
	})
	var hosts, ports []string
	for _, s := range servers {
		hosts, ports = append(hosts, s.Host), append(ports, fmt.Sprint(s.Port))
	}
	text := fmt.Sprintf("host=%s port=%s user=%s dbname=%s", valueText(strings.Join(hosts, ",")),
		strings.Join(ports, ","), valueText(c.User), valueText(server.Database(c)))
	if wanted := sessionAttrs(c); wanted != "" {
		text += " target_session_attrs=" + wanted
	}
	return text
}

// sessionAttrs is the target_session_attrs of a configuration, wherever it was given; empty if any server will do. pgx
// keeps nothing of it but the function that asks a server.
func sessionAttrs(c *pgx.ConnConfig) string {
	asks := reflect.ValueOf(c.ValidateConnect).Pointer()
	for word, f := range map[string]pgconn.ValidateConnectFunc{
		"read-write":     pgconn.ValidateConnectTargetSessionAttrsReadWrite,
		"read-only":      pgconn.ValidateConnectTargetSessionAttrsReadOnly,
		"primary":        pgconn.ValidateConnectTargetSessionAttrsPrimary,
		"standby":        pgconn.ValidateConnectTargetSessionAttrsStandby,
		"prefer-standby": pgconn.ValidateConnectTargetSessionAttrsPreferStandby,
	} {
		if reflect.ValueOf(f).Pointer() == asks {
			return word
		}
	}
	return ""
}

// valueText quotes a value of a connection string of keywords and values.
func valueText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
