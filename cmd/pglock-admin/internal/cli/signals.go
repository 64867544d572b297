package cli

import (
	"os"
	"os/signal"
	"slices"
)

// Heeded leaves out the signals that this program was started to ignore, as nohup does. Go knows this of HUP and INT
// only.
func Heeded(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}
