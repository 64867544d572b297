// Package dashboard is a web page that shows the locks of package pglock, to mount in a back office.
package dashboard
