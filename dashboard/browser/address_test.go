package browser

import (
	"testing"
)

func TestAnUnknownAddressSaysWhichIsRight(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "billing/nightly report+1")
	p := open(t, s.home, "#/lock/nobody", 390, 844)
	for address, offers := range map[string]string{
		"#/lock/billing%2Fnightly%20report%2B1":   "#/lock?name=billing%2Fnightly%20report%2B1",
		"#/lock/billing/nightly%20report+1":       "#/lock?name=billing%2Fnightly%20report%2B1",
		"#/locks/nightly":                         "#/lock?name=nightly",
		"#/lock/100%25":                           "#/lock?name=100%25",
		"#/lock/100%":                             "#/lock?name=100%25",
		"#/lok?name=nightly":                      "#/lock?name=nightly",
		"#/lock/%3Cimg%20src=x%20onerror=1%3E":    "#/lock?name=%3Cimg%20src%3Dx%20onerror%3D1%3E",
		"#/lock":                                  "",
		"#/lock?name=":                            "",
		"#/lock?nam=nightly":                      "",
		"#/constructor":                           "",
		"#/__proto__":                             "",
		"#/timeline/<img src=x onerror=alert(1)>": "",
	} {
		p.eval("location.hash = " + quote(address))
		p.text(".unknown", "This page does not know the address ")
		p.until("document.querySelector('.unknown code').textContent === location.hash")
		p.text(".unknown", "A link to a lock has the form #/lock?name=NAME. NAME is percent-encoded")
		p.harmless()
		const links = "[...document.querySelectorAll('.unknown a')].map(a => a.getAttribute('href')).join(' ')"
		want := "#/locks"
		if offers != "" {
			want = offers + " #/locks"
		}
		if got := eval[string](p, links); got != want {
			t.Errorf("%s: the page offers %q, want %q", address, got, want)
		}
		if got := eval[string](p, "document.title"); got != "unknown address – "+s.admin.Place().String()+" – pglock" {
			t.Errorf("%s: title %q", address, got)
		}
	}
	p.gone("#link") // there is no data that could be live or old

	p.visit([2]string{"#/lock/billing%2Fnightly%20report%2B1", ".unknown"})
	p.click(".unknown p:nth-child(2) a")
	p.text(".sentence", "app-1 has held it")
	p.text("#link", "live")
	p.visit([2]string{"#/nothing", ".unknown"})
	p.click(".unknown a.button")
	p.text("tbody th", "billing/nightly report+1")
	p.visit([2]string{"#/nothing", ".unknown"})
	p.press("1") // keys work as anywhere
	p.text("tbody th", "billing/nightly report+1")
	for _, view := range []string{"#/locks", "#/sessions"} {
		p.visit([2]string{"#/nothing", ".unknown"})
		end, _ := s.slow("/api/")
		p.eval("location.hash = " + quote(view))
		p.text("#link", "connecting")
		end()
		p.text("#link", "live")
	}
}

func TestTheLinkOfTheDocumentationLeadsToTheLock(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "jobs/nightly report+1")
	p := open(t, s.home, "#/lock?name=jobs%2Fnightly%20report%2B1", 1240, 900)
	p.text("h1", "jobs/nightly report+1")
	p.text(".sentence", "app-1 has held it")
}

func TestALockThatNobodyHasUsedIsCalledThat(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := open(t, s.home, "#/lock?name=nightly", 390, 844)
	p.text(".empty", "Nobody has used a lock named nightly here, or its row was pruned.")
	p.text(".empty", "Is this the right database?")
	p.gone(".loading")
	p.until("document.title.startsWith('nightly unknown – ')")
	s.hold("app-1", "nightly")
	p.text(".sentence", "app-1 has held it") // somebody has taken it, and the page needs no reload
	p.gone(".empty")
}
