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

// elsewhere writes a command for another database of the server. It names the variable that has the connection string
// where that works, and so keeps the password without showing it.
func (o *options) elsewhere(command, database string) string {
	if o.databaseURL == "" && o.config != nil {
		given, now := o.getenv("DATABASE_URL"), o.config.ConnConfig.Database
		// What a shell does with ${DATABASE_URL%/now*}: it cuts off the shortest end that begins so.
		at := strings.LastIndex(given, "/"+now)
		if at > 0 && strings.HasPrefix(given, "postgres") && plainWord.MatchString(now) &&
			plainWord.MatchString(database) {
			rest := given[at+1+len(now):]
			there, err := pgx.ParseConfig(given[:at] + "/" + database + rest)
			c := o.config.ConnConfig
			if err == nil && (rest == "" || plainQuery.MatchString(rest) && !strings.Contains(rest, "password")) &&
				there.Database == database &&
				there.Host == c.Host && there.Port == c.Port && there.User == c.User && there.Password == c.Password {
				schema := options{schema: o.schema}
				return fmt.Sprintf(`export DATABASE_URL="${DATABASE_URL%%/%s*}/%s%s"; %s%s`, now, database, rest,
					command, schema.same())
			}
		}
	}
	return command + o.sameBut(database)
}

// Texts that mean themselves between double quotes, and in a pattern.
var (
	plainWord  = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	plainQuery = regexp.MustCompile(`^\?[A-Za-z0-9_.,:=&/%+-]*$`)
)

// leavesOut reports whether a command lacks the password that the user gave in the connection string.
func (o *options) leavesOut(command string) bool {
	given := o.url()
	if given == "" || o.config == nil || strings.Contains(command, "DATABASE_URL") {
		return false
	}
	asks := strings.Contains(command, "--database-url ") || strings.HasPrefix(command, "psql ")
	return asks && withoutPassword(given, o.config.ConnConfig) != given &&
		o.config.ConnConfig.Password != o.getenv("PGPASSWORD")
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
	if u, err := url.Parse(withoutPassword(o.url(), o.config.ConnConfig)); err == nil &&
		strings.HasPrefix(u.Scheme, "postgres") {
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
	for _, own := range []string{"pool_", "default_query_exec_mode", "statement_cache_capacity",
		"description_cache_capacity"} {
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
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s", valueText(c.Host), c.Port, valueText(c.User),
		valueText(databaseOf(&c.Config)))
}

// valueText quotes a value of a connection string of keywords and values.
func valueText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
