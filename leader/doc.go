// Package leader elects one leader among the processes of an application, with a lock of package pglock: whoever
// holds the lock leads, and the others wait in its queue.
//
//	candidate, err := leader.New(client, "leader/scheduler") // *pglock.Client; in every process
//	…
//	err = candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
//		return work(ctx, lease)                              // this process leads until ctx ends
//	})
//
// # A term
//
//	          lease granted           ctx of fn ends          fn has returned
//	campaign ───────────────▶ leading ──────────────▶ stopping ─────────────▶ lock released
//	   ▲                                                                          │
//	   └──────────── leadership was lost, handed over or resigned ◀───────────────┘
//
// First the context of fn ends, then fn returns, and then Run releases the lock. So the next leader begins when the
// work of the last one has stopped, if fn obeys its context before the lease ends. Run says what follows when fn
// returns. Whoever closes the client, or releases fn's lease, gives the lock up before fn returns: let Run end first.
//
// A candidate loses leadership when its process is stopped or cut off for longer than the TTL. The context of fn then
// ends by the local clock, before the lease can end on the server: a twentieth of the TTL earlier, at most a second. Fn
// must stop within that time, or two leaders may act at the same time. A process that does not run cannot stop fn. And
// after an operator's break, or a failover that lost the grant, fn learns of it only at the next renewal. So write
// under a fence: pass fn's lease to package fencedstore, and the database refuses what a deposed leader writes.
//
// # Stepping down
//
// Resign stops the work and goes to the end of the queue. HandOver stops it and gives the lock to the candidate with a
// given label, whatever its place in the queue. To leave for good, end the ctx of Run, or return nil from fn.
//
// # Watching
//
// Observe is an iterator over the leaders: label, token, time of the grant, and metadata. It needs no candidate. Status
// and Health say what the candidate of this process does; Health is an http.Handler for probes.
//
// # How long a failover takes
//
// If a leader resigns, ends its Run or closes its client, the next one leads within milliseconds. If it is killed or
// cut off, the next one leads when its lease ends, after two thirds to all of the TTL (WithTTL). docs/leader.md has
// measurements, and compares this package with other elections.
package leader
