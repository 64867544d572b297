// Reads and writes the address: #/locks?order=waiting, #/lock?name=…, #/sessions. Every view is a link. Others write
// these links too: docs/dashboard.md has the form of that to a lock.

export function parseRoute(hash = location.hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const params = Object.fromEntries(new URLSearchParams(query));
  return { view: path || 'locks', path, params };
}

// home is the list as it was when it was last seen: where a lock's page leads back to.
export let home = '#/locks';

export function setHome(hash) {
  home = hash;
}

// queryOf writes parameters; those that are empty are left out.
export function queryOf(params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== '' && value !== null && value !== undefined && value !== false)
      query.set(name, value === true ? '1' : value);
  }
  return query.toString();
}

// link writes the address of a view.
export function link(view, params = {}) {
  const text = queryOf(params).replaceAll('+', '%20'); // a + is %2B there
  return `#/${view}${text ? '?' + text : ''}`;
}

// go changes the address; with replace the back button skips the old one, as while somebody types.
export function go(view, params, { replace = false } = {}) {
  const to = link(view, params);
  if (to === location.hash) return;
  if (replace) {
    history.replaceState(null, '', to);
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  } else location.hash = to;
}
