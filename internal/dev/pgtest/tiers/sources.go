// Package tiers knows from the sources which tests the short tier has.
package tiers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// A Source is a test as its source has it.
type Source struct {
	Name, Dir, Position string
	Moved               bool     // runs only in the whole tier or the long one
	Shown               []string // the tests that it names, or that a part of it names, as those that show the same
}

// Sources reads the tests of every package below root. A file that only the long tier has is left out.
func Sources(root string) (all []Source, err error) {
	files := token.NewFileSet()
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
		for _, decl := range file.Decls {
			f, is := decl.(*ast.FuncDecl)
			if !is || f.Body == nil || f.Recv != nil {
				continue
			}
			s := Source{Name: f.Name.Name, Dir: filepath.ToSlash(filepath.Dir(path)),
				Position: files.Position(f.Pos()).String()}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if names, is := leaves(n); is {
					s.Shown = append(s.Shown, names...)
				}
				return true
			})
			for _, statement := range f.Body.List {
				if e, is := statement.(*ast.ExprStmt); is {
					_, moves := leaves(e.X)
					s.Moved = s.Moved || moves
				}
			}
			if strings.HasPrefix(s.Name, "Test") || len(s.Shown) != 0 {
				all = append(all, s)
			}
		}
		return nil
	})
	return all, err
}

// leaves says whether this is a call of Whole or Long, and of which tests.
func leaves(n ast.Node) (names []string, is bool) {
	call, is := n.(*ast.CallExpr)
	if !is {
		return nil, false
	}
	if own, is := call.Fun.(*ast.Ident); is && own.Name == "whole" { // of pgserver, which pgtest needs
		return nil, true
	}
	f, is := call.Fun.(*ast.SelectorExpr)
	if !is || f.Sel.Name != "Whole" && f.Sel.Name != "Long" {
		return nil, false
	}
	if p, is := f.X.(*ast.Ident); !is || p.Name != "pgtest" || len(call.Args) == 0 {
		return nil, false
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
	return names, true
}
