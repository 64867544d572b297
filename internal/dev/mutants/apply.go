package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// apply returns the broken texts of the files, by path. Each edit must fit in exactly one place.
func (m mutant) apply(root string) (map[string]string, error) {
	texts := make(map[string]string)
	for _, e := range m.edits {
		path := filepath.Join(root, e.file)
		text, seen := texts[path]
		if !seen {
			read, err := os.ReadFile(path) //nolint:gosec // a file of the tree
			if err != nil {
				return nil, err
			}
			text = string(read)
		}
		places := e.places(text)
		if len(places) != 1 {
			return nil, fmt.Errorf("%s has the text %d times, want once: %s", e.file, len(places), e.old)
		}
		texts[path] = text[:places[0][0]] + e.broken + text[places[0][1]:]
	}
	return texts, nil
}

// places are where the text is. In SQL line breaks do not matter; nor in Go, where it is nowhere as it is written.
func (e edit) places(text string) [][]int {
	if filepath.Ext(e.file) != ".sql" {
		if exact := regexp.MustCompile(regexp.QuoteMeta(e.old)).FindAllStringIndex(text, -1); len(exact) > 0 {
			return exact
		}
	}
	words := strings.Fields(e.old)
	for i, w := range words {
		words[i] = regexp.QuoteMeta(w)
	}
	return regexp.MustCompile(strings.Join(words, `\s+`)).FindAllStringIndex(text, -1)
}
