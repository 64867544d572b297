//go:build unix && !linux

package minder

import "syscall"

func commandAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func adoptOrphans() {} // init does
