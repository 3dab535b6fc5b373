// Typecheck checks the types of packages of this module as GOOS would have them. A compiler for another system would find no
// more, and would compile the standard library first.
//
//	GOOS=windows typecheck palisade.example/palisade …
package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
)

func check(set *token.FileSet, imports types.Importer, path string) error {
	found, err := build.Import(path, ".", 0)
	if err != nil {
		return err
	}
	files := make([]*ast.File, len(found.GoFiles))
	for at, name := range found.GoFiles {
		if files[at], err = parser.ParseFile(set, filepath.Join(found.Dir, name), nil, 0); err != nil {
			return err
		}
	}
	_, err = (&types.Config{Importer: imports}).Check(path, set, files, nil)
	return err
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: typecheck PACKAGE…")
		os.Exit(2)
	}
	set := token.NewFileSet()
	// It reads what they import without the bodies of functions.
	imports := importer.ForCompiler(set, "source", nil)
	for _, path := range os.Args[1:] {
		if err := check(set, imports, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
