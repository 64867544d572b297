package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

//go:embed assets
var embedded embed.FS

var page = template.Must(template.ParseFS(embedded, "assets/index.html"))

// file is something that a browser loads besides the page and data.
type file struct {
	body []byte
	kind string // its Content-Type
	etag string
}

// kinds has the types of the files; those of the system may differ.
var kinds = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// readFiles has the files by their names below assets/.
func readFiles() map[string]file {
	entries, _ := embedded.ReadDir("assets") // what is embedded can be read
	files := make(map[string]file)
	for _, entry := range entries {
		kind := kinds[path.Ext(entry.Name())]
		if kind == "" {
			continue // the page itself, notes and sources
		}
		body, _ := embedded.ReadFile("assets/" + entry.Name())
		sum := sha256.Sum256(body)
		files[entry.Name()] = file{body, kind, `"` + hex.EncodeToString(sum[:12]) + `"`}
	}
	return files
}

// settings is what the template of the page gets.
type settings struct {
	Title string // of Config, or ""
	Place lockadmin.Place
	Where string // the place on one line, as every answer has it
	User  string // the person's name on one line, or ""
}

func (d *Dashboard) servePage(w http.ResponseWriter, _ *http.Request, who Identity) error {
	s := settings{Title: d.config.Title, Place: d.admin.Place(), Where: d.place,
		User: shown.Line(who.Name)}
	var body bytes.Buffer
	if err := page.Execute(&body, s); err != nil {
		d.config.OnError(err)
		return refused(http.StatusInternalServerError, "The page cannot be made.")
	}
	writeBody(w, http.StatusOK, "text/html; charset=utf-8", body.Bytes())
	return nil
}

// serveFile writes a file. A browser keeps it, and asks each time whether it is still the same.
func (d *Dashboard) serveFile(w http.ResponseWriter, r *http.Request, _ Identity) error {
	f, found := d.files[strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"), "assets/")]
	if !found {
		return notFound
	}
	h := w.Header()
	h.Set("Cache-Control", "private, no-cache")
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.etag)
	hurry(w)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
	return nil
}

// writeBody writes an answer, for which a client that reads slowly has a limited time.
func writeBody(w http.ResponseWriter, status int, kind string, parts ...[]byte) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(size))
	hurry(w)
	w.WriteHeader(status)
	for _, part := range parts {
		_, _ = w.Write(part) // a client that is gone does not read it; to HEAD the server sends nothing
	}
}
