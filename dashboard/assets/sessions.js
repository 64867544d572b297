// The view of sessions: the clients that hold or wait, and whether they are alive. The page asks every few seconds.

import { get } from './api.js';
import { h, mark, put, Rows, write } from './dom.js';
import * as connection from './link.js';
import { showLife } from './lives.js';
import { loading, say, title } from './notes.js';
import { go, link } from './route.js';
import { clock, count, escaped, seconds, shown } from './text.js';

const EVERY = 3_000;
const PAGE = 200;

export function sessionsView(root, first) {
  let params = first;
  let abort = new AbortController();
  let timer;
  let typing;
  let asked = false;

  const search = h('input', {
    type: 'search',
    id: 'search',
    placeholder: 'Holder, session or application contains…',
    autocomplete: 'off',
    spellcheck: 'false',
    'aria-keyshortcuts': '/',
    maxlength: 512,
    input: () => typed(150),
  });
  const summary = h('p', { class: 'summary', id: 'summary' });
  const body = h('tbody', { role: 'rowgroup' });
  const heads = ['Client', 'State', 'Leases', 'Tickets', 'Heartbeat', 'Backend'];
  const table = h(
    'table',
    { class: 'sessions', role: 'table', 'aria-label': 'Sessions', 'aria-busy': 'true' },
    h(
      'thead',
      { role: 'rowgroup' },
      h(
        'tr',
        { role: 'row' },
        heads.map((t) => h('th', { scope: 'col', role: 'columnheader' }, t)),
      ),
    ),
    body,
  );
  table.hidden = true; // until there is something to show
  const waits = loading('the sessions');
  const empty = h('p', { class: 'empty', hidden: true });
  const start = h('a', { class: 'button' }, 'First page');
  const next = h('a', { class: 'button', rel: 'next' }, 'Next page');
  const pager = h('nav', { class: 'pager', 'aria-label': 'Pages', hidden: true }, start, next);
  const rows = new Rows(body, (s) => s.id, makeRow);

  put(
    root,
    h('div', { class: 'head' }, h('h1', { tabindex: '-1' }, 'Sessions'), summary),
    h(
      'form',
      {
        class: 'tools',
        role: 'search',
        submit: (e) => {
          e.preventDefault();
          typed(0);
        },
      },
      h('label', { class: 'field wide' }, h('span', {}, 'Search'), search),
    ),
    waits,
    table,
    empty,
    pager,
  );

  function typed(wait) {
    clearTimeout(typing);
    typing = setTimeout(() => {
      asked = true;
      go('sessions', { match: search.value }, { replace: true });
    }, wait);
  }

  async function read() {
    clearTimeout(timer);
    abort.abort();
    const own = (abort = new AbortController());
    try {
      const data = await get('api/sessions', { match: params.match, after: params.after, limit: PAGE }, own.signal);
      connection.touched();
      draw(data);
    } catch (err) {
      if (own.signal.aborted) return;
      connection.failed(err);
    }
    if (!own.signal.aborted)
      timer = setTimeout(() => {
        if (!document.hidden) read();
        else timer = setTimeout(read, EVERY);
      }, EVERY);
  }

  function draw(data) {
    const list = data.sessions ?? [];
    for (const one of list) one.came = performance.now();
    rows.show(list);
    waits.remove();
    table.hidden = list.length === 0;
    empty.hidden = list.length > 0;
    put(empty, params.match ? ['No session contains ', shown(params.match), '.'] : 'No client is connected.');
    mark(table, 'aria-busy', 'false');
    start.hidden = !params.after;
    start.href = link('sessions', { match: params.match });
    next.hidden = !data.more;
    if (data.more) next.href = link('sessions', { ...params, after: data.next ?? list.at(-1).id });
    pager.hidden = start.hidden && next.hidden;
    const bad = ['dead', 'silent']
      .map((life) => [list.filter((s) => s.life === life).length, life])
      .filter(([n]) => n > 0)
      .map(([n, life]) => `${n} ${life}`);
    const words = [`${count(list.length, 'session')}${data.more ? ', and more' : ''}`, ...bad].join(' · ');
    write(summary, words);
    title([...bad, count(list.length, 'session')].join(', '));
    if (asked) say(words);
    asked = false;
  }

  if (params.match) search.value = params.match;
  connection.leave();
  connection.retryWith(read);
  read();
  return {
    update(changed) {
      params = changed;
      if (document.activeElement !== search) search.value = params.match ?? '';
      read();
      return true;
    },
    tick() {
      for (const row of rows.rows.values()) row.tick();
    },
    keys: {
      '/': () => search.select(),
      Escape: () => {
        if (search.value) {
          search.value = '';
          typed(0);
        }
      },
    },
    close() {
      clearTimeout(timer);
      clearTimeout(typing);
      abort.abort();
    },
  };
}

function makeRow(session) {
  const client = h('a', { href: link('locks', { match: session.holder }) });
  const small = h('span', { class: 'small soft' });
  const state = h('span', { class: 'life' });
  const leases = h('span', { class: 'number' });
  const tickets = h('span', { class: 'number' });
  const beat = h('span', { class: 'number' });
  const backend = h('span', {});
  const cell = (label, ...content) => h('td', { role: 'cell', 'data-label': label }, ...content);
  const element = h(
    'tr',
    { role: 'row' },
    h('th', { scope: 'row', role: 'rowheader' }, client, small),
    cell('State', state),
    cell('Leases', leases),
    cell('Tickets', tickets),
    cell('Heartbeat', beat),
    cell('Backend', backend),
  );
  return {
    element,
    update(changed) {
      session = changed;
      if (client.dataset.of !== session.holder) {
        client.dataset.of = session.holder;
        put(
          client,
          session.holder
            ? shown(session.holder, { title: escaped(session.holder) })
            : shown(String(session.id).slice(0, 8)),
        );
      }
      write(small, `${String(session.id).slice(0, 8)}${session.version ? ` · ${escaped(session.version)}` : ''}`);
      showLife(element, state, session.life);
      write(leases, String(session.leases ?? '–'));
      write(tickets, String(session.tickets ?? '–'));
      write(
        backend,
        [
          session.pid ? `PID ${session.pid}` : '',
          escaped(session.application ?? session.application_name ?? ''),
          escaped(session.client ?? session.client_addr ?? ''),
        ]
          .filter(Boolean)
          .join(' · ') || '–',
      );
      this.tick();
    },
    tick() {
      const ms = session.silent_ms ?? session.since_heartbeat_ms;
      write(
        beat,
        Number.isFinite(ms)
          ? `${seconds(ms + performance.now() - session.came)} ago`
          : session.last_heartbeat
            ? clock(session.last_heartbeat)
            : '–',
      );
    },
  };
}
