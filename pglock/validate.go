package pglock

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/argument"
)

// The limits, which the schema enforces too.
const (
	MaxNameBytes     = 512  // of a lock's or a resource's name
	MaxHolderBytes   = 256  // of a holder's label
	MaxMetadataBytes = 8192 // of a lease's metadata, as JSON text
	MaxLimit         = 1000 // of the holders that WithLimit allows

	MinTTL     = 100 * time.Millisecond
	MaxTTL     = 24 * time.Hour
	DefaultTTL = 30 * time.Second

	DefaultSessionTTL = 10 * time.Second
)

// checkText refuses a text that is empty, longer than most bytes, not UTF-8, or that PostgreSQL cannot store.
func checkText(field, value string, most int) error {
	if p := argument.Text(field, value, most); p != nil {
		return (*ArgumentError)(p)
	}
	return nil
}

func checkTTL(field string, ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return &ArgumentError{field, ttl.String(), fmt.Sprintf("be from %v to %v", MinTTL, MaxTTL)}
	}
	return nil
}

func checkGrace(ttl, grace time.Duration) error {
	if grace < 0 || grace > MaxTTL-ttl {
		return &ArgumentError{"grace", grace.String(), fmt.Sprintf("be from 0 to %v less the TTL of %v", MaxTTL, ttl)}
	}
	return nil
}

func checkMetadata(raw json.RawMessage) error {
	if len(raw) > MaxMetadataBytes {
		return &ArgumentError{"metadata", fmt.Sprintf("%d bytes long", len(raw)),
			fmt.Sprintf("have at most %d bytes", MaxMetadataBytes)}
	}
	if !json.Valid(raw) || !utf8.Valid(raw) {
		return &ArgumentError{"metadata", argument.Shorten(string(raw)), "be valid JSON in UTF-8"}
	}
	return nil
}

// checkNames refuses a list of names that is empty or contains a bad or repeated name.
func checkNames(names []string) error {
	if len(names) == 0 {
		return &ArgumentError{"names", "empty", "have at least one name"}
	}
	seen := make(map[string]int, len(names))
	for i, name := range names {
		if err := checkText(fmt.Sprintf("names[%d]", i), name, MaxNameBytes); err != nil {
			return err
		}
		if first, twice := seen[name]; twice {
			return &ArgumentError{fmt.Sprintf("names[%d]", i), argument.Shorten(name),
				fmt.Sprintf("not be the same as names[%d]", first)}
		}
		seen[name] = i
	}
	return nil
}

// newGrantID chooses the ID of a grant before the request. uuid.NewRandom fails only on a system without
// randomness.
func newGrantID() (uuid.UUID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return uuid.Nil, fmt.Errorf("choose a grant ID: %w", err)
	}
	return id, nil
}
