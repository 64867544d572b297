// Package act has the commands that change something: break, prune, guard, migrate and record.
package act
