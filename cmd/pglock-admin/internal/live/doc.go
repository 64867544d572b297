// Package live has the screens that move: top and watch.
package live
