// Package browser has the tests of the page in package dashboard: they play it in Chromium, over a real database. It
// is a module, so that nobody else pays for its dependencies.
//
// Without Chromium the tests are skipped. On Debian: apt-get install --no-install-recommends chromium.
//
//	go -C dashboard/browser test ./...
//	go -C dashboard/browser test -run TestPictures -update .   # draws the pictures of docs/dashboard.md again
package browser
