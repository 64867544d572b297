package model

// A Mistake is a deliberate one in the protocol, which the model must notice. NoMistake is the protocol as it is.
type Mistake string

const (
	NoMistake Mistake = ""
	// of a lock and its queue
	TokenBeforeRow   Mistake = "a token is drawn before the row is locked"
	QueueWithoutHead Mistake = "a request queues without joining the head"
	ServeLast        Mistake = "the last ticket is served first"
	ReleaseOnly      Mistake = "a release does not serve the queue"
	HintsAlone       Mistake = "waiters trust hints alone"
	// of the fence
	NoFence      Mistake = "the fence compares nothing"
	NoCheck      Mistake = "COMMIT does not check the lease"
	NoLockInside Mistake = "a takeover passes over a COMMIT under way"
	// of renewals and the clock
	RenewalPassed Mistake = "a takeover passes over a renewal under way"
	LateRenewal   Mistake = "a late renewal revives the lease"
	EndNotNoted   Mistake = "the end by the clock is not noted"
	// of subtrees
	NoWaitForGrants Mistake = "a subtree does not wait for grants under way"
	SnapshotFirst   Mistake = "a plain grant takes its snapshot before the table lock"
	NoTableLock     Mistake = "a subtree is granted without the table lock"
	HeadNotMarked   Mistake = "the head of a free lock with a queue is not marked"
	PassLower       Mistake = "a subtree passes lower tickets below"
	TokenWithTicket Mistake = "a subtree's token is drawn with its ticket"
	DeadTicketLeft  Mistake = "a subtree passes over a dead ticket without its row"
	DeadTicketGone  Mistake = "a dead ticket that somebody else has taken out counts as taken out"
	DeadSubtreeLeft Mistake = "a plain grant passes over a dead subtree request without its row"
	DeadCounts      Mistake = "a dead subtree request still counts"
	NewcomersPass   Mistake = "newcomers pass a waiting subtree"
)
