//go:build !unix

// Package troubles prepares locks in trouble. It stops and kills processes, and so needs Unix.
package troubles
