// Package fencedhttp passes fencing tokens to HTTP services, and lets a service compare them.
//
// A fence in the database protects what is in the database. A service that keeps its state elsewhere compares the
// tokens itself. A Transport puts the token of the request's context into the header Fencing-Token; a Verifier, a
// middleware, remembers in a TokenStore the greatest token that it has seen for a resource, and refuses lower ones.
//
//	// the holder of the lease
//	client := &http.Client{Transport: &fencedhttp.Transport{}}
//	ctx := fencedhttp.ContextWithLease(lease.Context(), lease)
//	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, body)
//	resp, err := client.Do(req)      // not sent once the lease has ended: pglock.ErrLost or pglock.ErrReleased
//	err = fencedhttp.Refusal(resp)   // nil, or a *RefusedError, which is an ErrRefused
//
//	// the service
//	path := func(r *http.Request) (string, error) { return r.URL.Path, nil }
//	verifier := &fencedhttp.Verifier{Store: store, Resource: path}
//	http.ListenAndServe(addr, authenticated(verifier.Middleware(handler)))
//
// # The contract
//
// The header has one value: the token in decimal, 1 to 19 digits without sign or leading zeros. A token passes unless
// a greater one was seen for the same resource, so one holder can make many requests. The answer to a refused request
// is a problem document (RFC 9457, application/problem+json, Cache-Control: no-store):
//
//   - 409, TypeStaleToken: a greater token was seen. The document has members token, lastToken and resource.
//   - 428, TypeNoToken: the request has no header, and its method is checked.
//   - 400, TypeBadToken, TypeBadResource: the header is not as above or occurs twice; the request names no
//     resource.
//   - 503, TypeNoStore, TypeWaiting: the store has not answered; with Serialize, a predecessor is still at work.
//     Nothing was admitted. Only Verifier.OnError and Verifier.Observer receive the details.
//   - 500, TypeMisconfigured: the Verifier lacks its Store, its Resource or its handler.
//
// GET, HEAD and OPTIONS pass unchecked, unless Verifier.Unchecked says otherwise. In the handler, TokenFromContext
// returns the admitted token, and a Transport passes it on.
//
// # What this does not do
//
// The verifier orders admission, not completion. A request that was admitted before a greater token came may still be
// at work after it, and may write last. Two things help:
//
//   - A service that writes to a database compares the token in the writing statement
//     itself: UPDATE things SET …, token = $1 WHERE id = $2 AND token <= $1, with the token of
//     TokenFromContext; no row means refused.
//   - Verifier.Serialize makes a greater token wait until the handlers of lower ones have returned. It knows only
//     the requests of its own process, and what a handler does until it returns.
//
// The service knows what it has seen, not who holds the lock. After a lease has ended, its holder's requests pass
// until the next holder's first one. So a new holder should make a checked request before it reads what its work
// depends on, or the service should check reads too (Verifier.Unchecked).
//
// A token is no credential. It is not secret, and anybody who may send one may send the greatest possible one, after
// which no other passes. Put the verifier behind authentication and authorization. A client that follows a redirect
// sends the token along.
//
// All tokens of a resource must come from one pglock schema: another database has another sequence. They ascend
// across failovers, even those that lose commits. After a restore an operator advances the epoch: see
// docs/failover.md#advance-the-epoch.
//
// The leases must be exclusive. Those with pglock.WithShared or WithLimit last side by side, and the latest one's token
// would refuse the others, which are valid. If Resource names the slot too, as pglock.Lease.Resource does, the Verifier
// compares the tokens of each slot by themselves.
package fencedhttp
