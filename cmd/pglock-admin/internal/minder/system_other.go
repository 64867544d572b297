//go:build unix && !linux

package minder

import "os"

func dieWithParent() {} // the program kills the group if it lives

func adoptOrphans() {} // init does

func isDead(int) bool { return false } // nobody tells

func ownProgram() (file, name string, err error) {
	file, err = os.Executable()
	return file, file, err
}

func showName() {} // it has that of its file
