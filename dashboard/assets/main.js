// Puts the page together: which view, which colours, which keys.

import { h, mark } from './dom.js';
import * as link from './link.js';
import { help, shortcuts } from './keys.js';
import { locksView } from './locks.js';
import { lockView } from './lock.js';
import { showPlace } from './place.js';
import { sessionsView } from './sessions.js';
import { go, parseRoute } from './route.js';
import { keep, recall } from './stored.js';
import { unknownView } from './unknown.js';

const main = document.getElementById('main');
const views = { locks: locksView, lock: lockView, sessions: sessionsView };
const known = ({ view, params }) => Object.hasOwn(views, view) && (view !== 'lock' || Boolean(params.name));

let shown = null; // the view on the page: { name, key, update, tick, keys, close }
const places = new Map(); // where a list was scrolled, and what had the focus, by address

function show() {
  const route = parseRoute();
  const [view, make, params] = known(route)
    ? [route.view, views[route.view], route.params]
    : ['unknown', unknownView, route];
  for (const a of document.querySelectorAll('[data-view]')) {
    mark(a, 'aria-current', a.dataset.view === view || (view === 'lock' && a.dataset.view === 'locks') ? 'page' : null);
  }
  // A view that can follow the new address itself stays, and keeps the focus and what was typed.
  if (shown?.name === view && shown.update(params)) return;
  close();
  const root = h('div', { class: `view ${view}-view` });
  main.replaceChildren(root);
  shown = { name: view, hash: location.hash, ...make(root, params, places.get(location.hash)) };
  if (started) {
    window.scrollTo(0, 0);
    (root.querySelector('[data-focus]') ?? root.querySelector('h1') ?? main).focus({ preventScroll: true });
  }
  started = true;
}

let started = false;

function close() {
  if (!shown) return;
  places.set(shown.address?.() ?? shown.hash, { scroll: left, focus: shown.focus?.() });
  shown.close();
  link.leave();
  shown = null;
}

let left = 0; // the last scroll position, as long as the view that was scrolled is there
window.addEventListener(
  'scroll',
  () => {
    if (shown) left = window.scrollY;
  },
  { passive: true },
);
window.addEventListener('hashchange', show);
history.scrollRestoration = 'manual';

document.querySelector('.skip').addEventListener('click', (e) => {
  e.preventDefault(); // its # would be taken for a view
  main.focus();
});

const themes = ['auto', 'light', 'dark'];
const themeButton = document.getElementById('theme');

const chosen = () => recall('theme') ?? 'auto';

function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  keep('theme', theme);
  const [glyph, words] = { auto: ['◐', 'Auto'], light: ['○', 'Light'], dark: ['●', 'Dark'] }[theme];
  themeButton.replaceChildren(glyph, h('span', {}, words));
  themeButton.setAttribute('aria-label', `Colours: ${theme === 'auto' ? 'as the system' : theme}. Change`);
}

function nextTheme() {
  setTheme(themes[(themes.indexOf(chosen()) + 1) % themes.length]);
}

showPlace();
setTheme(themes.includes(chosen()) ? chosen() : 'auto');
themeButton.addEventListener('click', nextTheme);
document.getElementById('help').addEventListener('click', help);

shortcuts(
  {
    1: () => go('locks'),
    2: () => go('sessions'),
    t: nextTheme,
    '?': help,
  },
  () => shown?.keys ?? {},
);

setInterval(() => {
  link.tick();
  if (link.live()) shown?.tick?.();
}, 1000);

show();
