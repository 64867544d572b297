// The view of all locks: a live table, with search, orders and pages. The server searches and sorts, so that a million
// locks are as quick as ten.

import { h, mark, put, write } from './dom.js';
import { illSection } from './ill.js';
import { heldFor, leaseBar, longestWait, received } from './lease.js';
import * as connection from './link.js';
import { cell, listPage } from './list.js';
import { showLife } from './lives.js';
import { title } from './notes.js';
import { go, link, setHome } from './route.js';
import { count, escaped, modeOf, seconds, shown, showIn } from './text.js';
import { showVerdict } from './verdict.js';

const PAGE = 100;
const COLUMNS = [
  { title: 'Verdict' },
  { title: 'Lock', order: 'name', sort: 'ascending' },
  { title: 'Holder' },
  { title: 'Token' },
  { title: 'Held for', order: 'age', sort: 'descending' },
  { title: 'Lease', order: 'expiry', sort: 'ascending' },
  { title: 'Waiting', order: 'waiting', sort: 'descending' },
];
const ORDERS = {
  name: 'name',
  age: 'age, oldest first',
  waiting: 'waiting, longest first',
  expiry: 'expiry, soonest first',
};

const keyOf = (lock) => `${lock.slot ?? 0}\u0000${lock.name}`;
const ILL = 'ill\u0000'; // begins the key of a line that says what is wrong

export function locksView(root, first, place) {
  let params = first;
  let address = link('locks', first);
  let locks = [];
  let more = false;
  let closed = false; // somebody has locked a whole table
  let restore = place; // where the list was when it was left

  const order = h(
    'select',
    { id: 'order', change: () => sortBy(order.value) },
    Object.entries(ORDERS).map(([value, words]) => h('option', { value }, words)),
  );
  const free = h('input', { type: 'checkbox', id: 'free', change: () => to({ free: free.checked }) });
  const size = h(
    'select',
    { id: 'size', change: () => to({ limit: Number(size.value) === PAGE ? '' : size.value }) },
    [100, 500, 1000].map((n) => h('option', { value: n }, n)),
  );
  const list = listPage({
    heading: 'Locks',
    what: 'the locks',
    placeholder: 'Name or holder contains…',
    attributes: { class: 'rows locks', 'aria-labelledby': 'title', 'aria-describedby': 'summary' },
    titles: COLUMNS.map((c) =>
      c.order
        ? h(
            'button',
            { type: 'button', click: () => sortBy(c.order) },
            c.title,
            h('span', { class: 'arrow', 'aria-hidden': 'true' }),
          )
        : c.title,
    ),
    key: keyOf,
    make: makeRow,
    find: (match) => to({ match }, true),
  });
  const { heads, start, next, pager, rows, table } = list;
  const rest = h('p', { class: 'hint' });
  pager.append(rest);
  const ill = illSection();

  put(
    root,
    list.head,
    ill.element,
    list.tools(
      h('label', { class: 'field' }, h('span', {}, 'Sort by'), order),
      h('label', { class: 'field' }, h('span', {}, 'Page'), size),
      h('label', { class: 'check' }, free, 'also free locks'),
    ),
    list.content,
  );

  function to(change, replace = false) {
    const { after, page, ...rest } = params;
    go('locks', { ...rest, ...change }, { replace });
  }

  function sortBy(name) {
    list.asked = true;
    to({ order: name === 'name' ? '' : name });
  }

  function settings() {
    setHome(address);
    const by = params.order in ORDERS ? params.order : 'name';
    list.searched(params.match);
    order.value = by;
    free.checked = params.free === '1';
    size.value = params.limit ?? PAGE;
    COLUMNS.forEach((c, i) => {
      if (c.order) mark(heads[i], 'aria-sort', c.order === by ? c.sort : 'none');
    });
    start.hidden = !params.after;
    start.href = link('locks', { ...params, after: '', page: '' });
  }

  function follow() {
    mark(table, 'aria-busy', 'true');
    const query = {
      match: params.match,
      order: params.order ?? 'name',
      free: params.free === '1',
      limit: params.limit ?? PAGE,
      after: params.after,
    };
    connection.follow(query, (type, data) => {
      if (type === 'locks') draw(data);
    });
  }

  function draw(data) {
    locks = received(data.locks);
    more = data.more;
    ill.show(data.ill, data.at);
    closed = data.ill.locks[0]?.lock === '';
    list.show(locks, nothing);
    locks.forEach((lock, i) =>
      mark(rows.rows.get(keyOf(lock)).element, 'data-same', i > 0 && locks[i - 1].name === lock.name ? '' : null),
    );
    const byName = order.value === 'name'; // the other orders have a beginning, and no pages
    next.hidden = !more || !byName;
    write(
      rest,
      more && !byName ? `These are the first ${locks.length}. Search, sort by name, or choose a longer page.` : '',
    );
    if (more)
      next.href = link('locks', {
        ...params,
        after: locks.at(-1).name,
        page: Number(params.page ?? 1) + 1,
      });
    pager.hidden = start.hidden && !more;
    summarize();
    list.speak(spoken());
    if (restore) back();
  }

  // back returns to the place where the list was left, and to the lock that was opened there.
  function back() {
    const key = restore.focus;
    window.scrollTo(0, restore.scroll);
    const line = key?.startsWith(ILL) && ill.rows.rows.get(key.slice(ILL.length));
    const row = (line || rows.rows.get(key))?.element;
    if (row) {
      row.querySelector('a')?.focus({ preventScroll: true });
      row.scrollIntoView({ block: 'nearest' }); // rows that were never drawn have an estimated height
    }
    restore = null;
  }

  function nothing() {
    if (closed) return 'Nobody can read the locks now.';
    if (params.match) return ['No lock, and no holder, contains ', shown(params.match), '.'];
    if (params.after) return 'There are no further locks.';
    return params.free === '1' ? 'No lock was ever used here.' : 'No lock is held.';
  }

  function numbers() {
    const names = new Map();
    for (const lock of locks) names.set(lock.name, lock.waiting);
    return {
      held: locks.filter((l) => l.held).length,
      waiting: [...names.values()].reduce((sum, n) => sum + n, 0),
    };
  }

  function spoken() {
    const n = numbers();
    const found = params.match ? ' found' : '';
    return `${more ? 'The first ' : ''}${count(locks.length, 'lock')}${found}, ${n.waiting} waiting`;
  }

  function summarize() {
    const n = numbers();
    const page = Number(params.page ?? 1);
    const which = more || page > 1 ? `page ${page}: ` : '';
    write(
      list.summary,
      `${which}${count(n.held, 'lease')} held${more ? ', and more' : ''} · ${n.waiting} waiting` +
        (ill.counts ? ` · ${ill.counts}` : ''),
    );
    title(`${ill.counts ? `${ill.counts}, ` : ''}${n.held}${more ? '+' : ''} held, ${n.waiting} waiting`);
  }

  function move(step) {
    const links = [...list.body.querySelectorAll('a')];
    const at = links.indexOf(document.activeElement);
    const to = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + step))];
    to?.focus();
  }

  settings();
  follow();
  return {
    update(changed) {
      params = changed;
      address = link('locks', changed);
      settings();
      follow();
      if (!list.asked) window.scrollTo(0, 0);
      return true;
    },
    tick() {
      ill.rows.tick();
      rows.tick();
    },
    address: () => address,
    focus() {
      const left = (all) =>
        [...all].find(([, row]) => row.opened || row.element.contains(document.activeElement))?.[0];
      const line = left(ill.rows.rows);
      return line === undefined ? left(rows.rows) : ILL + line;
    },
    keys: {
      ...list.keys,
      ArrowDown: () => move(1),
      j: () => move(1),
      ArrowUp: () => move(-1),
      k: () => move(-1),
      n: () => sortBy('name'),
      a: () => sortBy('age'),
      w: () => sortBy('waiting'),
      e: () => sortBy('expiry'),
    },
    close: list.close,
  };
}

function makeRow(lock) {
  const verdict = h('span', { class: 'severity' });
  const mode = h('span', { class: 'mode' });
  const name = h('a', { href: link('lock', { name: lock.name }), title: escaped(lock.name) }, shown(lock.name));
  const holder = h('span', { class: 'holder' });
  const life = h('span', { class: 'life' });
  const token = h('span', { class: 'number' });
  const held = h('span', { class: 'number' });
  const lease = leaseBar();
  const waiting = h('span', { class: 'queue' });
  const since = h('span', { class: 'since' }); // how long the first has waited
  const element = h(
    'tr',
    { role: 'row', click: open },
    cell('Verdict', verdict),
    h('th', { scope: 'row', role: 'rowheader', class: 'lock' }, name, mode),
    cell('Holder', holder, life),
    cell('Token', token),
    cell('Held for', held),
    cell('Lease', lease.element),
    cell('Waiting', waiting, since),
  );
  let skipped = false; // out of sight, so that nothing need be drawn
  element.addEventListener('contentvisibilityautostatechange', (e) => {
    skipped = e.skipped;
    row.tick();
  });
  const row = {
    element,
    opened: false,
    update(changed) {
      const before = lock;
      lock = changed;
      showIn(holder, lock.holder, '–');
      showVerdict(element, verdict, lock.verdict);
      showLife(element, life, lock.life);
      write(mode, modeOf(lock));
      write(token, String(lock.token));
      write(waiting, lock.waiting > 0 ? String(lock.waiting) : '–');
      mark(waiting, 'data-some', lock.waiting > 0 ? '' : null);
      if (String(before.token) !== String(lock.token)) flash(element);
      this.tick();
    },
    tick() {
      if (skipped) return;
      mark(element, 'data-is', lock.held ? null : 'free');
      write(held, lock.held ? seconds(heldFor(lock)) : '–');
      write(since, lock.waiting > 0 ? seconds(longestWait(lock)) : '');
      lease.update(lock);
    },
  };
  function open(e) {
    row.opened = true;
    if (e.target.closest('a') || String(getSelection())) return;
    go('lock', { name: lock.name });
  }
  return row;
}

// flash draws the eye to a row that somebody else holds now, without moving anything.
function flash(element) {
  element.classList.remove('flash');
  void element.offsetWidth;
  element.classList.add('flash');
}
