// The view of sessions: the clients that hold or wait, and whether they are alive. The page asks every few seconds.

import { get } from './api.js';
import { h, put, write } from './dom.js';
import { received } from './lease.js';
import * as connection from './link.js';
import { cell, listPage } from './list.js';
import { showLife } from './lives.js';
import { note, title } from './notes.js';
import { go, link } from './route.js';
import { count, escaped, seconds, shown, showIn } from './text.js';

const EVERY = 3_000;
const PAGE = 200;

export function sessionsView(root, first) {
  let params = first;
  let abort = new AbortController();
  let timer;

  const list = listPage({
    heading: 'Sessions',
    what: 'the sessions',
    placeholder: 'Holder, session or application contains…',
    attributes: { class: 'rows sessions', 'aria-label': 'Sessions' },
    titles: ['Client', 'State', 'Leases', 'Tickets', 'Heartbeat', 'Backend'],
    key: (s) => s.id,
    make: makeRow,
    find: (match) => go('sessions', { match }, { replace: true }),
  });
  const { start, next } = list;
  put(root, list.head, list.tools(), list.content);

  async function read() {
    clearTimeout(timer);
    abort.abort();
    const own = (abort = new AbortController());
    try {
      const { match, after, after_holder } = params;
      const data = await get('api/sessions', { match, after, after_holder, limit: PAGE }, own.signal);
      connection.touched();
      draw(data);
    } catch (err) {
      if (own.signal.aborted) return;
      if (err.status === 400 && params.after) {
        note('The client that this page began after has gone.', 'bad');
        go('sessions', { match: params.match }, { replace: true });
        return;
      }
      connection.failed(err);
    }
    if (!own.signal.aborted)
      timer = setTimeout(() => {
        if (!document.hidden) read();
        else timer = setTimeout(read, EVERY);
      }, EVERY);
  }

  function draw(data) {
    const sessions = received(data.sessions);
    list.show(sessions, () =>
      params.match ? ['No session contains ', shown(params.match), '.'] : 'No client is connected.',
    );
    start.hidden = !params.after;
    start.href = link('sessions', { match: params.match });
    next.hidden = !data.more;
    const last = sessions.at(-1); // which may be gone when the next page is read
    if (data.more) next.href = link('sessions', { match: params.match, after: last.id, after_holder: last.holder });
    list.pager.hidden = start.hidden && next.hidden;
    const bad = ['dead', 'silent']
      .map((life) => [sessions.filter((s) => s.life === life).length, life])
      .filter(([n]) => n > 0)
      .map(([n, life]) => `${n} ${life}`);
    const words = [`${count(sessions.length, 'session')}${data.more ? ', and more' : ''}`, ...bad].join(' · ');
    write(list.summary, words);
    title([...bad, count(sessions.length, 'session')].join(', '));
    list.speak(words);
  }

  list.searched(params.match);
  connection.leave();
  connection.retryWith(read);
  read();
  return {
    update(changed) {
      params = changed;
      list.searched(params.match);
      read();
      return true;
    },
    tick() {
      list.rows.tick();
    },
    keys: list.keys,
    close() {
      clearTimeout(timer);
      list.close();
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
      const id = session.id.slice(0, 8);
      showIn(client, session.holder, shown(id));
      write(small, `${id}${session.version ? ` · ${escaped(session.version)}` : ''}`);
      showLife(element, state, session.life);
      write(leases, String(session.leases));
      write(tickets, String(session.tickets));
      write(
        backend,
        [
          session.pid ? `PID ${session.pid}` : '',
          escaped(session.application_name),
          escaped(session.client_addr),
        ]
          .filter(Boolean)
          .join(' · ') || '–',
      );
      this.tick();
    },
    tick() {
      const silent = session.silent_ms + performance.now() - session.came;
      write(beat, session.last_heartbeat ? `${seconds(silent)} ago` : '–');
    },
  };
}
