// Package schedulers makes the jobs of a scheduler run once for each planned time, although every replica of the
// application has its own scheduler.
//
//	nightly, err := cron.ParseStandard("CRON_TZ=UTC 0 2 * * *")
//	slots, err := schedulers.NewSlots(client, store, nightly) // *pglock.Client, *fencedstore.Store; in every replica
//	err = slots.Do(ctx, "report", func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
//		…                                                     // in the transaction that also notes the slot as done
//	})
//
// # Why a lock is not enough
//
// A lock says who may work now, and is free again when the work is done. Clocks differ: if a replica's clock is late,
// it asks for the lock when another has finished the job, gets it, and runs the job a second time. So a run needs a
// name that all replicas agree on. That name is its slot: the planned time. Slots remembers which slots are done.
//
// # Which slot a run is for
//
// Schedulers do not tell a job its planned time. Slots works it out: a run is for the last planned time by the local
// clock. The scheduler started the run by the same clock, so replicas agree, however much their clocks differ. A timer
// may fire a little early if somebody has set the clock. So a run that begins shortly before a planned time is for that
// time: at most a tenth of the gap between two planned times before it, and at most a minute.
//
//   - Give Slots the schedule of the scheduler. It must be fixed: each replica must plan the same times, whenever it
//     started. NewSlots refuses cron's "@every 1h", which counts from the start of the replica; use Every.
//   - If a run begins after the next planned time, it counts as the run of that next time.
//   - A run that you start by hand counts as the run of the last planned time. If that is done, it does nothing.
//   - Times of day need the same time zone in all replicas: CRON_TZ=UTC, or a name. That of gocron.WithLocation does
//     not reach Slots.
//
// # What is promised
//
// Do does the work and notes the slot in one transaction. So the work of a slot is committed once, or not at all. If
// the process dies or the work fails, nothing of it remains, and the replicas that wait for the lock try it, one after
// the other.
//
// A slot stays open if it fails in all of them, or if no replica runs then. A deployment at that time ends the replicas
// that work and wait, and those that it starts plan only later slots. So also run each job once when its scheduler has
// started: that does the last slot if it is open, and otherwise nothing. Shortly before the next planned time, a minute
// or a tenth of the gap if that is less, it does the next slot instead, too early, and leaves the last one open.
// Packages cron and gocron show how.
// For a new job this is the slot before its deployment. One that is older than the retention fails with
// fencedstore.ErrKeyTooOld, also if it is done: set WithRetention to more than the longest gap.
//
// Begin and End are for jobs that cannot write in the transaction of Do, and for schedulers whose interface has no
// place for it. After End nobody begins the slot again. If the process dies between Begin and End, a replica that waits
// begins the slot again, and repeats what the job has done until then. Prefer Do.
//
// Runs of one job never overlap, in any replica. If a run takes longer than the time between two planned times, the
// runs of the slots that pass meanwhile wait for the lock, and follow one after the other; with gocron's NewLocker only
// one waits, and the later ones are left out. If all should be left out, let the scheduler of each replica do so:
// cron.SkipIfStillRunning around Job or Once, or gocron.WithSingletonMode(gocron.LimitModeReschedule).
//
// Packages gocron and cron have adapters for these schedulers.
package schedulers
