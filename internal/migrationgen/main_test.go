package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMigrationIsWhatTheFilesOfTheSchemaSay(t *testing.T) {
	folder := filepath.Join("..", "..", "migrations")
	up, down, err := generate(folder)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{name + ".up.sql": up, name + ".down.sql": down} {
		got, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what migrations/schema say: go generate ./migrations", file)
		}
	}
}
