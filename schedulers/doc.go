// Package schedulers makes the jobs of a scheduler run once for each planned time, although every replica of the
// application has a scheduler of its own.
//
//	nightly, err := cron.ParseStandard("CRON_TZ=UTC 0 2 * * *")
//	slots, err := schedulers.NewSlots(client, store, nightly) // *pglock.Client, *fencedstore.Store; in every replica
//	err = slots.Do(ctx, "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
//		…                                                     // in the transaction that also notes the slot as done
//	})
//
// # Why a lock is not enough
//
// A lock says who may work now, and is free again when the work is done. Clocks differ: a replica whose clock is late
// asks for the lock when another has finished the job, gets it, and runs the job a second time. So a run needs a name
// that all replicas agree on. That name is its slot: the planned time. Slots notes the slots that are done.
//
// # Which slot a run is for
//
// Schedulers do not tell a job for which planned time it runs. Slots works it out: the run is for the last planned
// time by the local clock, which is the clock that the scheduler has started the run by. So replicas agree, however
// much their clocks differ. A timer may fire a little early when the clock was set meanwhile: a run that comes before
// a planned time by no more than a tenth of the time between two, and no more than a minute, is for that one.
//
//   - The schedule must be the scheduler's, and fixed: each replica must plan the same times, whenever it started.
//     NewSlots refuses cron's "@every 1h", which counts from the start of the replica; use Every.
//   - A run that begins so late that the next planned time has come counts as the run of that one.
//   - A run by hand counts as the run of the last planned time, and does nothing where that is done.
//   - Times of day need the same time zone in all replicas: CRON_TZ=UTC, or a name.
//
// # What is promised
//
// Do does the work and notes the slot in one transaction. The work of a slot is committed once, or not at all: when
// the process dies or the work fails, nothing of it stays, and the replicas that wait for the lock try it, one after
// the other. A slot is lost only if it fails in all of them, or if no replica runs then.
//
// Begin and End are for jobs that do not write in a transaction of ours, and for schedulers whose interface has no
// place for one. A slot that was ended is not begun again. When the process dies between the two, a replica that
// waits begins the slot again, so what the job has done until then is done twice. Prefer Do.
//
// Runs of one job do not overlap, over all replicas. While a run takes longer than the time between two planned
// times, slots are left out.
//
// Packages gocron and cron have the adapters for these schedulers.
package schedulers
