// Package explain has the commands that say what is wrong and what to do: why, doctor and verify.
package explain
