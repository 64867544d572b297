// Package fencedhttp hands fencing tokens on to HTTP services, and lets a service compare them by itself.
//
// A fence in the database protects what is in the database. A service that keeps its state elsewhere has to compare the
// tokens where the state is. This package is both ends of that: a Transport, which puts the token of the request's
// context into the header Fencing-Token, and a Verifier, a middleware which remembers the greatest token that it has seen
// for a resource, in a TokenStore, and refuses lower ones.
//
//	// the holder of the lease
//	client := &http.Client{Transport: &fencedhttp.Transport{}}
//	req, err := http.NewRequestWithContext(fencedhttp.ContextWithLease(lease.Context(), lease), http.MethodPut, url, body)
//	resp, err := client.Do(req)      // not sent once the lease has ended: pglock.ErrLost or pglock.ErrReleased
//	err = fencedhttp.Refusal(resp)   // nil, or a *RefusedError, which is an ErrRefused
//
//	// the service
//	verifier := &fencedhttp.Verifier{Store: store, Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil }}
//	http.ListenAndServe(addr, authenticated(verifier.Middleware(handler)))
//
// # The contract
//
// The header has one value: the token in decimal, 1 to 19 digits without sign or leading zeros. A token passes unless a
// greater one was seen for the same resource: one holder makes many requests. What does not pass is answered with a
// problem document (RFC 9457, application/problem+json, Cache-Control: no-store):
//
//   - 409, TypeStaleToken: a greater token was seen. The document has members token, lastToken and resource.
//   - 428, TypeNoToken: the request has no header, and its method is checked.
//   - 400, TypeBadToken, TypeBadResource: the header is not as above or occurs twice; the request names no resource.
//   - 503, TypeNoStore, TypeWaiting: the store has not answered; with Serialize, a predecessor is still at work. Nothing was
//     admitted. Details go to OnError alone.
//
// GET, HEAD and OPTIONS pass unchecked, unless Verifier.Unchecked says otherwise. The handler finds the token that has
// passed with TokenFromContext, and a Transport in the handler hands it on.
//
// # What this does not do
//
// The verifier orders admission, not completion. A request that was admitted before a greater token came may still be at
// work after it, and may write last. Two things help:
//
//   - A service that writes to a database compares the token in the transaction that writes, where the comparison and the
//     write are one: UPDATE things SET …, token = $1 WHERE id = $2 AND token <= $1, with the token of TokenFromContext, and no row
//     means refused.
//   - Verifier.Serialize makes a greater token wait until the handlers of lower ones have returned. It knows of the
//     requests of its own process only, and of what a handler does until it returns.
//
// The service knows what it has seen, not who holds the lock. After a lease has ended, its holder's requests pass until
// the next holder's first one: that closes the door. So a new holder makes a checked request before it reads what its
// work depends on, or the service checks reads too (Verifier.Unchecked).
//
// A token is no credential: it is not secret, and whoever may send one may send the greatest there is, after which nobody
// else's passes. Put the verifier behind what authenticates and authorizes. A client that follows a redirect sends the
// token to where it leads.
//
// All tokens of a resource must come from one pglock schema: those of another database are from another sequence. They
// ascend across failovers, also those that lose commits; what needs an operator, such as a restore, is in docs/failover.md.
package fencedhttp
