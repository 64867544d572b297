//go:build long

package integration

const long = true
