package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// PasswordFirst is advice about a command that leaves out the password.
const PasswordFirst = "set PGPASSWORD to the password first"

// perhapsElsewhere says where pglock is in use, if err is that the schema is missing here.
func (o *Options) perhapsElsewhere(ctx context.Context, pool *pgxpool.Pool, err error) error {
	if schema, is := errors.AsType[*pglock.SchemaError](err); !is || schema.Have != 0 {
		return err
	}
	places, placesErr := lockadmin.Places(ctx, pool, lockadmin.WithSchema(o.Schema))
	if placesErr != nil || len(places) == 0 {
		return err
	}
	p, last := places[0], places[len(places)-1]
	text := fmt.Sprintf("this database has no pglock in schema %s, but schema %s has it", shown.Word(o.Schema),
		shown.Word(p.Schema))
	hint := o.There(o.again, p.Schema, "")
	if p.Schema == "" {
		but := ""
		if last.Owner != "" { // anybody may have made it
			but = " but in schema " + shown.Word(last.Schema) + ", which belongs to " + shown.Word(last.Owner)
		}
		text = fmt.Sprintf("this is probably the wrong database: it has no pglock%s, and programs that use pglock are "+
			"connected to database %s of the same server", but, shown.Word(p.Database))
		hint = o.There(o.again, "", p.Database)
	}
	if p.Owner != "" { // whoever looks there runs what that role has made
		return &Advised{Code: ExitSchema, Text: text + " and belongs to " + shown.Word(p.Owner),
			Hint: "if that role may make functions for you: the same command with --schema " + shown.Argument(p.Schema)}
	}
	if o.LeavesOut(hint) {
		hint += " (" + PasswordFirst + ")"
	}
	return &Advised{Text: text, Code: ExitSchema, Hint: hint}
}

// again is a command that looks, with its names and without its flags.
func again(cmd *cobra.Command) string {
	words := strings.Fields(cmd.CommandPath())
	for n := range cmd.Flags().Args() {
		if name, err := NameOf(cmd, cmd.Flags().Args(), n); err == nil {
			words = append(words, shown.Name(name))
		}
	}
	return strings.Join(words, " ")
}
