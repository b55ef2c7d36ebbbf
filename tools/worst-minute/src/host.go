// Installs Coroner by cgo from main, and does what the words on the command line say.
package main

/*
#cgo LDFLAGS: -ldl
#define EMBEDDED
#include "host.c"
*/
import "C"
import "os"

type node struct{ next *node }

func follow(from *node) (failed bool) {
	defer func() { failed = recover() != nil }()
	return from.next == from
}

func main() {
	C.host_install()
	for _, word := range os.Args[1:] {
		switch word {
		case "nil-pointers":
			for n := 0; n < 20; n++ {
				if !follow(nil) {
					os.Exit(5)
				}
			}
		case "errors":
			C.host_report_errors()
		case "end":
			// Go ends a program by exit_group(2), which nobody sees.
			C.host_end()
		case "crash":
			C.host_crash()
		}
	}
}
