package lockadmin

import (
	"database/sql"
	"fmt"
	"time"
)

// column takes the value of a column that may be NULL.
type column[T any] func(value sql.Null[T])

// Scan implements sql.Scanner.
func (set column[T]) Scan(from any) error {
	var value sql.Null[T]
	err := value.Scan(from)
	set(value)
	return err
}

// only is the row of an answer that has one.
func only[T any](rows []T, err error) (one T, _ error) {
	if err == nil && len(rows) != 1 {
		err = fmt.Errorf("the server answered with %d rows", len(rows))
	}
	if err != nil {
		return one, err
	}
	return rows[0], nil
}

// null is zero for NULL.
func null[T any](to *T) column[T] { return func(value sql.Null[T]) { *to = value.V } }

// micros is a duration, which the server sends in microseconds; 0 for NULL.
func micros(to *time.Duration) column[int64] {
	return func(us sql.Null[int64]) { *to = time.Duration(us.V) * time.Microsecond }
}

// moment is a time of the server's, which it sends in microseconds since 1970, in UTC; zero for NULL.
func moment(to *time.Time) column[int64] {
	return func(us sql.Null[int64]) {
		if *to = (time.Time{}); us.Valid {
			*to = time.UnixMicro(us.V).UTC()
		}
	}
}
