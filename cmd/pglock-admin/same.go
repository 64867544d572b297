package main

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// same gives the flags that a suggested command needs to reach the same schema of the same database, without a
// password.
func (o *options) same() string {
	s := ""
	if o.schema != "" && o.schema != defaultSchema {
		s = " --schema " + shellQuote(o.schema)
	}
	if o.databaseURL != "" && o.config != nil {
		s += " --database-url " + shellQuote(withoutPassword(o.databaseURL, o.config.ConnConfig))
	}
	return s
}

// sameBut is same for another database of the server.
func (o *options) sameBut(database string) string {
	if o.config == nil {
		return ""
	}
	c := *o.config.ConnConfig
	c.Database = database
	there := options{schema: o.schema, config: o.config}
	s := there.same()
	if o.url() == "" {
		return s + " --database-url " + shellQuote("dbname="+valueText(database))
	}
	if u, err := url.Parse(withoutPassword(o.url(), o.config.ConnConfig)); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		u.Path, u.RawPath = "/"+database, ""
		query := u.Query()
		query.Del("dbname")
		query.Del("database")
		u.RawQuery = query.Encode()
		return s + " --database-url " + shellQuote(u.String())
	}
	return s + " --database-url " + shellQuote(plainest(&c))
}

// psql is the command that leads to the same database.
func (o *options) psql() string {
	given := o.url()
	if given == "" || o.config == nil {
		return "psql"
	}
	for _, own := range []string{"pool_", "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"} {
		if strings.Contains(given, own) { // of this library alone: psql refuses it
			return "psql " + shellQuote(plainest(o.config.ConnConfig))
		}
	}
	if o.databaseURL == "" {
		return `psql "$DATABASE_URL"`
	}
	return "psql " + shellQuote(withoutPassword(o.databaseURL, o.config.ConnConfig))
}

// passwords matches the passwords in a connection string of keywords and values.
var passwords = regexp.MustCompile(`(?i)\b(ssl)?password\s*=\s*('(\\.|[^'\\])*'|(\\.|[^'\s\\])*)\s*`)

// withoutPassword removes the passwords from a connection string. If it cannot tell them from the rest, it writes a new
// string that leads to the same database.
func withoutPassword(connString string, c *pgx.ConnConfig) string {
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

func plainest(c *pgx.ConnConfig) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s", valueText(c.Host), c.Port, valueText(c.User), valueText(databaseOf(&c.Config)))
}

// valueText quotes a value of a connection string of keywords and values.
func valueText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
