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
		places := regexp.MustCompile(e.pattern()).FindAllStringIndex(text, -1)
		if len(places) != 1 {
			return nil, fmt.Errorf("%s has the text %d times, want once: %s", e.file, len(places), e.old)
		}
		texts[path] = text[:places[0][0]] + e.broken + text[places[0][1]:]
	}
	return texts, nil
}

func (e edit) pattern() string {
	if filepath.Ext(e.file) != ".sql" {
		return regexp.QuoteMeta(e.old)
	}
	words := strings.Fields(e.old)
	for i, w := range words {
		words[i] = regexp.QuoteMeta(w)
	}
	return strings.Join(words, `\s+`)
}
