// Package serve has the command serve: the page of package dashboard, with its listener and its authentication.
package serve
