// Package tier says what a run of the tests is for: by the build tag whole every test, by the tag long large loads too,
// and without a tag the tests of short.txt, which are required of every change. It is for tests only; they use it
// through pgtest where they can.
package tier
