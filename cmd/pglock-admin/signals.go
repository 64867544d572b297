package main

import (
	"os"
	"os/signal"
	"slices"
)

// heeded leaves out the signals that this program was started to ignore, as nohup does.
func heeded(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}
