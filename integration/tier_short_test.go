//go:build !long

package integration

// long says that the tests of the long tier run too: go test -tags long ./...
const long = false
