// Package fencedstore is the write path that a holder which has lost its lease cannot pass.
package fencedstore
