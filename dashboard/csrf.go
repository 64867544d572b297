package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"time"
)

// The header with the token of the page, and how long the token is valid.
const (
	csrfHeader = "X-CSRF-Token"
	csrfValid  = 24 * time.Hour
)

// csrfToken is a proof that this page was given to this person: the time, and a signature over time and name.
func (d *Dashboard) csrfToken(who Identity, at time.Time) string {
	token := binary.BigEndian.AppendUint64(nil, uint64(at.Unix()))
	return base64.RawURLEncoding.EncodeToString(d.sign(token, who))
}

// sign appends the signature.
func (d *Dashboard) sign(stamp []byte, who Identity) []byte {
	mac := hmac.New(sha256.New, d.secret)
	mac.Write([]byte("pglock dashboard csrf\x00"))
	mac.Write(stamp)
	mac.Write([]byte(who.Name))
	return mac.Sum(stamp)
}

// sameSite refuses a request that changes something, unless this page sent it: by what the browser says about its
// origin, and by the token, which pages of other origins cannot read.
func (d *Dashboard) sameSite(r *http.Request, who Identity, now time.Time) *refusal {
	if err := d.origins.Check(r); err != nil {
		return &refusal{Status: http.StatusForbidden, Error: "The request comes from another site."}
	}
	stale := &refusal{Status: http.StatusForbidden, Error: "The page is out of date. Load it again."}
	token, err := base64.RawURLEncoding.Strict().DecodeString(r.Header.Get(csrfHeader))
	if err != nil || len(token) != 8+sha256.Size {
		return stale
	}
	at := time.Unix(int64(binary.BigEndian.Uint64(token)), 0)
	genuine := hmac.Equal(token, d.sign(token[:8:8], who))
	if !genuine || now.Before(at.Add(-csrfValid)) || now.After(at.Add(csrfValid)) {
		return stale
	}
	return nil
}
