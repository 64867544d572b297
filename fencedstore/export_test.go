package fencedstore

// Explained is what Guarded.Explain makes of an error of a transaction that has passed its fences.
func Explained(err error, fenced Fenced) error {
	o, bad := config{}.open(fenced, true)
	if bad != nil {
		return bad
	}
	return (&Guarded{o: o}).Explain(err)
}
