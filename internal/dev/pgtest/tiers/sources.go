// Package tiers knows from the sources which tests the short tier has.
package tiers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/internal/dev/tier"
)

// A Source is a test as its source has it.
type Source struct {
	Name, Dir, Position string   // Dir is seen from the root
	Long                bool     // runs only in the long tier
	Short               bool     // is in the short tier
	Shown               []string // the tests that it names, or that a part of it names, as those that show the same
}

// Sources reads the tests of every package below root. A file that only the long tier has is left out.
func Sources(root string) (all []Source, err error) {
	files, list := token.NewFileSet(), tier.List()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || len(d.Name()) > 2 && d.Name()[0] == '.'):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, c := range file.Comments {
			if c.Pos() < file.Package && strings.HasPrefix(c.List[0].Text, "//go:build") &&
				strings.Contains(c.List[0].Text, "long") {
				return nil
			}
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		names, chosen := list[dir]
		for _, decl := range file.Decls {
			f, is := decl.(*ast.FuncDecl)
			if !is || f.Body == nil || f.Recv != nil {
				continue
			}
			s := Source{Name: f.Name.Name, Dir: dir, Position: files.Position(f.Pos()).String()}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				s.Shown = append(s.Shown, long(n)...)
				return true
			})
			for _, statement := range f.Body.List {
				if e, is := statement.(*ast.ExprStmt); is {
					s.Long = s.Long || long(e.X) != nil
				}
			}
			s.Short = !s.Long && (!chosen || slices.Contains(names, s.Name))
			if strings.HasPrefix(s.Name, "Test") || len(s.Shown) != 0 {
				all = append(all, s)
			}
		}
		return nil
	})
	return all, err
}

// long returns the tests that a call of Long names, and nil for what is no such call.
func long(n ast.Node) (names []string) {
	call, is := n.(*ast.CallExpr)
	if !is {
		return nil
	}
	f, is := call.Fun.(*ast.SelectorExpr)
	if !is || f.Sel.Name != "Long" {
		return nil
	}
	if p, is := f.X.(*ast.Ident); !is || p.Name != "pgtest" || len(call.Args) == 0 {
		return nil
	}
	for _, a := range call.Args[1:] {
		name := "what is no constant"
		if text, is := a.(*ast.BasicLit); is {
			name, _ = strconv.Unquote(text.Value)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		names = []string{"nothing"}
	}
	return names
}
