package cli

import (
	"os"
	"os/signal"
	"slices"
)

// Heeded leaves out the signals that this program was started to ignore, as nohup does.
func Heeded(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}
