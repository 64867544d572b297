// The view of an address that the page does not know: it says so, and which address is right.

import { h, put } from './dom.js';
import * as connection from './link.js';
import { title } from './notes.js';
import { link } from './route.js';
import { shown } from './text.js';

// meant is the name of the lock that somebody who wrote this address could mean, or "".
function meant({ path, params }) {
  if (params.name) return params.name;
  const name = path.match(/^locks?\/(.+)$/s)?.[1] ?? '';
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // its % is no escape
  }
}

export function unknownView(root, route) {
  const name = meant(route);
  const to = link('lock', { name });
  put(
    root,
    h('h1', { tabindex: '-1' }, 'Unknown address'),
    h(
      'div',
      { class: 'card unknown' },
      h('p', {}, 'This page does not know the address ', h('code', {}, shown(location.hash)), '.'),
      name
        ? h('p', {}, 'The link to the lock ', shown(name), ' is ', h('a', { href: to }, h('code', {}, shown(to))), '.')
        : null,
      h(
        'p',
        {},
        'A link to a lock has the form ',
        h('code', {}, '#/lock?name=NAME'),
        '. NAME is percent-encoded: ',
        h('code', {}, 'a b'),
        ' becomes ',
        h('code', {}, 'a%20b'),
        '.',
      ),
      h('p', {}, h('a', { class: 'button', href: link('locks') }, 'All locks')),
    ),
  );
  title('unknown address');
  connection.rest();
  return { update: () => false, close() {} };
}
