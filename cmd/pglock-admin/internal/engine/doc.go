// Package engine tries on a server what the protocol needs of PostgreSQL, before there is a schema. Other engines speak
// PostgreSQL's protocol, accept its words, and do something else.
package engine
