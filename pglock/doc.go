// Package pglock is named locks with leases and fencing tokens, as rows of a table in the application's own PostgreSQL.
package pglock
