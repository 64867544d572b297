//go:build !unix

package main

import "log"

func main() { log.Fatal("prepare stops and kills processes, and so needs Unix") }
