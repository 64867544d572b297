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
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
	}
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s", quote(c.Host), c.Port, quote(c.User), quote(databaseOf(&c.Config)))
}
