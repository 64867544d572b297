package coalesce

// NotSentError says that no statement contained the call.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }

func (e *NotSentError) Unwrap() error { return e.Err }

// LeftError says that the call has left its statement, which continues without it.
type LeftError struct{ Err error }

func (e *LeftError) Error() string { return e.Err.Error() }

func (e *LeftError) Unwrap() error { return e.Err }

// LateError says that no connection came in the time for which a call may wait for one. Calls that came later have some
// of theirs left.
type LateError struct{ Err error }

func (e *LateError) Error() string { return e.Err.Error() }

func (e *LateError) Unwrap() error { return e.Err }
