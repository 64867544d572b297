// Package dashboard is a web page that shows the locks of package pglock and follows them as they change. A team mounts
// it in its own back office; pglock-admin serve shows it without one.
//
//	locks, err := dashboard.New(admin, dashboard.Config{Auth: who}) // a *lockadmin.Admin; who is the application's
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//	mux.Handle("/admin/locks/", http.StripPrefix("/admin/locks", locks))
//
// All addresses of the page are relative, so it works below any prefix. Its files are embedded, and it loads nothing
// from elsewhere.
//
// # Who may do what
//
// Config says whom the page lets in: Auth asks the application, People are those who have a password or a token, and
// with Anybody whoever reaches the handler sees the locks. Without one of the three New refuses. Breaks lets those who
// have a name break locks; the history names them. Requests that change something must come from the page's own origin
// (http.CrossOriginProtection).
//
// # What it reads
//
// Streams that show the same thing share a feed, which reads about once a second while one of them is open. The page
// uses a few connections of the Admin's pool at once (Config.Connections), and none while nobody looks. If the
// database is away the page says so, and continues when it is back.
//
// The feeds are goroutines of the Dashboard. The last stream of a feed ends and joins it; Close ends all streams. The
// http.Server of the application must know deadlines for writes, as net/http does: middleware that wraps the
// http.ResponseWriter needs a method Unwrap.
package dashboard
