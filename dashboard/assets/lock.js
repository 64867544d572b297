// The view of one lock: what is going on, who holds it, who waits, who held it before.

import { get } from './api.js';
import { breakDialog } from './break.js';
import { commandText } from './command.js';
import { h, morph, put, Rows, s, write } from './dom.js';
import { breakButton, fencesTable, historyTable, holderCard, queueTable, whyList } from './lockparts.js';
import { heldFor, received } from './lease.js';
import * as connection from './link.js';
import { loading, title } from './notes.js';
import { fit, queuePicture } from './queue.js';
import * as route from './route.js';
import { count, escaped, moment, shown } from './text.js';
import { ENDS, sign, tenures, timeline } from './timeline.js';

const PAGE = 200; // entries of the history at a time
const NOTHING = { events: [], more: false }; // is known of the history

export function lockView(root, params) {
  const name = params.name ?? '';
  let data = null;
  let past = NOTHING;
  let pastOf = null; // the state of the lock that the history was read for
  let most = PAGE; // entries to keep: what somebody has asked for, and room for what comes
  let asking = null; // the dialog that is open
  let abort = new AbortController(); // ends the request for the newest entries of the history
  let abortOlder = new AbortController();
  let width = 0;

  const sentence = h('p', { class: 'sentence', 'aria-live': 'polite' });
  const breakIt = breakButton({ hidden: true, 'aria-keyshortcuts': 'b', click: () => ask(data.holders[0]) });
  const card = (heading, id, ...content) =>
    h('section', { class: 'card', 'aria-labelledby': id, hidden: true }, h('h2', { id }, heading), ...content);
  const why = h('div', {});
  const holders = h('div', { class: 'holders' });
  const holderCards = new Rows(
    holders,
    (lock) => JSON.stringify([lock.slot, lock.token, lock.metadata]),
    (lock) => holderCard(lock, ask),
  );
  const queue = h('div', { class: 'canvas' });
  const scrolled = (name, ...content) =>
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name }, ...content);
  const asTable = 'The queue as a table';
  const queueList = h('details', {}, h('summary', {}, asTable), scrolled(asTable, h('div')));
  const line = h('div', { class: 'canvas' });
  const legend = h(
    'ul',
    { class: 'legend', 'aria-label': 'How a tenure ended' },
    Object.entries(ENDS).map(([end, words]) =>
      h(
        'li',
        { 'data-end': end },
        s(
          'svg',
          { class: 'picture sign', width: 20, height: 20, viewBox: '0 0 20 20', 'aria-hidden': 'true' },
          s('g', { transform: end === 'break' ? 'translate(10 10) scale(.5)' : 'translate(10 10)' }, sign(end, 0, 0)),
        ),
        words.replace(/:.*/, ''),
      ),
    ),
  );
  const level = h('p', { class: 'hint' });
  const fences = scrolled('Fences', h('div'));
  const history = scrolled('History');
  const older = h('button', { type: 'button', hidden: true, click: () => readMore() }, 'Older entries');
  const cards = {
    why: card('What is going on', 'h-why', why),
    holders: card('Holder', 'h-holders', holders),
    queue: card('Queue', 'h-queue', queue, queueList),
    line: card('Who held it', 'h-line', line, legend, level),
    fences: card(
      'Fences',
      'h-fences',
      h('p', { class: 'hint' }, 'The highest token that has written to each resource. Lower tokens are refused.'),
      fences,
    ),
    history: card('History', 'h-history', history, h('div', { class: 'buttons left' }, older)),
  };
  const missing = h('div', { class: 'empty', hidden: true });
  const waits = loading('this lock');

  put(
    root,
    h('a', { class: 'back', href: route.home }, '← All locks'),
    h(
      'div',
      { class: 'head' },
      h('h1', { tabindex: '-1', class: 'name' }, shown(name)),
      h('div', { class: 'actions' }, breakIt),
    ),
    sentence,
    waits,
    missing,
    cards.why,
    h('div', { class: 'columns' }, cards.holders, cards.queue),
    cards.line,
    cards.fences,
    cards.history,
  );

  title(escaped(name));
  const watch = new ResizeObserver(() => {
    const w = root.clientWidth;
    if (w !== width) {
      width = w;
      pictures();
    }
  });
  watch.observe(root);

  connection.follow(
    { name },
    (type, changed) => {
      if (type === 'lock') draw(changed);
    },
    () => {
      forget();
      missing.hidden = false;
      put(missing, unused());
      asking?.moved(null, 0);
      title(`${escaped(name)} unknown`);
    },
  );

  const unused = () => [
    h('p', {}, 'Nobody has used a lock named ', shown(name), ' here, or its row was pruned.'),
    h('p', {}, 'Is this the right database? If somebody takes the lock, it appears here.'),
    h('p', {}, h('a', { href: route.link('locks', { match: name, free: true }) }, 'Search the list for this name')),
  ];

  function draw(changed) {
    if (!changed.lock) {
      hide(changed.why);
      return;
    }
    data = { ...changed, standby: changed.why ? changed.why.standby : data?.standby };
    received([data.lock, ...data.holders, ...data.waiters]);
    waits.remove();
    missing.hidden = true;
    words();
    morph(why, h('div', {}, whyList(data.why)));
    cards.why.hidden = false;
    drawHolders();
    cards.queue.hidden = false;
    queueList.hidden = data.waiters.length === 0;
    morph(queueList.lastChild.firstChild, h('div', {}, queueTable(data)));
    cards.fences.hidden = data.fences.length === 0;
    morph(fences.firstChild, h('div', {}, fencesTable(data)));
    pictures();
    asking?.moved(data.holders.find((l) => l.slot === asking.slot) ?? null, data.holders.length);
    const state = JSON.stringify([
      data.lock.token,
      data.lock.held,
      data.lock.ended_at,
      data.holders.map((l) => l.token),
    ]);
    if (state !== pastOf) {
      pastOf = state;
      readHistory();
    }
  }

  // hide shows who has locked a whole table, so that nobody can read this lock.
  function hide(by) {
    forget();
    missing.hidden = true;
    morph(why, h('div', {}, whyList(by)));
    cards.why.hidden = false;
    title(`hidden: ${escaped(name)}`);
  }

  // words says the state in a sentence, and in the tab's title. Screen readers hear it again when the state changes.
  function words() {
    const held = data.holders;
    const waiting = data.more_waiters
      ? `more than ${data.waiters.length} wait`
      : data.waiters.length === 0
        ? 'Nobody waits'
        : count(data.waiters.length, 'request waits', 'requests wait');
    const key = `${held.length}|${held.map((l) => l.token)}|${data.lock.token}|${waiting}|${data.standby}`;
    if (sentence.dataset.key === key) return;
    sentence.dataset.key = key;
    const known = data.standby ? 'As far as this standby knows, ' : '';
    const place = data.standby ? 'standby: ' : '';
    if (held.length === 0) {
      const last = data.lock;
      put(
        sentence,
        `${known}${known ? 'n' : 'N'}obody holds this lock. `,
        last.holder ? ['The last holder was ', shown(last.holder), `, with token ${last.token}. `] : '',
        `${waiting}.`,
      );
      title(`${place}free: ${escaped(name)}`);
    } else {
      const who =
        held.length === 1
          ? [
              shown(held[0].holder),
              ' has held it since ',
              moment(held[0].acquired_at),
              ', with token ',
              h('b', {}, String(held[0].token)),
              '. ',
            ]
          : [`${held.length} holders share it${held[0].mode === 'limit' ? `, of at most ${held[0].limit}` : ''}. `];
      put(sentence, known, who, `${waiting}.`);
      title(`${place}held${data.waiters.length ? `, ${data.waiters.length} waiting` : ''}: ${escaped(name)}`);
    }
  }

  // forget is for a lock that has vanished, or that nobody can read: what was known of it is no state of this moment,
  // and must not come back.
  function forget() {
    data = null;
    past = NOTHING;
    pastOf = null;
    most = PAGE;
    abort.abort();
    abortOlder.abort();
    waits.remove();
    put(sentence);
    delete sentence.dataset.key;
    for (const c of Object.values(cards)) c.hidden = true;
    holderCards.show([]);
    breakIt.hidden = true;
  }

  function drawHolders() {
    const held = data.holders;
    cards.holders.hidden = held.length === 0;
    write(cards.holders.querySelector('h2'), held.length > 1 ? `Holders (${held.length})` : 'Holder');
    holderCards.show(held.map((lock) => ({ ...lock, breakable: data.can_break && held.length > 1 })));
    breakIt.hidden = !data.can_break || held.length !== 1;
  }

  function ask(lock) {
    asking = { ...breakDialog(lock, data.waiters), slot: lock.slot };
  }

  function pictures() {
    if (!data) return;
    const room = (canvas) => Math.max(280, Math.floor(canvas.clientWidth || canvas.parentElement.clientWidth - 40));
    const picture = queuePicture({ ...aged(), more: data.more_waiters, standby: data.standby }, room(queue));
    put(queue, picture);
    fit(picture);
    const list = tenures(past.events, data.holders, nowOnServer());
    cards.line.hidden = list.length === 0;
    for (const li of legend.children) li.hidden = !list.some((t) => t.end === li.dataset.end);
    if (list.length > 0) {
      const drawn = timeline(list, nowOnServer(), room(line));
      put(line, drawn);
      fit(drawn);
    }
  }

  const nowOnServer = () => new Date(data.at).getTime() + performance.now() - data.lock.came;

  // aged is the state with durations of this moment.
  function aged() {
    return {
      holders: data.holders.map((l) => ({ ...l, held_for_ms: heldFor(l) })),
      waiters: data.waiters.map((w) => ({ ...w, waiting_ms: w.waiting_ms + performance.now() - w.came })),
    };
  }

  // readHistory reads the newest entries. Of those that are known already the older ones stay, unless some are missing
  // between, or there are too many. An entry may be committed after one with a higher ID: the answer has it.
  function readHistory() {
    abort.abort();
    abort = new AbortController();
    return read('', abort.signal, (answer) => {
      if (!answer.more || past.events.length === 0) return answer;
      const last = BigInt(answer.events.at(-1).id);
      if (BigInt(past.events[0].id) < last) return answer;
      const all = [...answer.events, ...past.events.filter((e) => BigInt(e.id) < last)];
      return { ...answer, events: all.slice(0, most), more: past.more || all.length > most };
    });
  }

  // readMore reads older entries. A change of the lock meanwhile ends that only if the last one is another now.
  function readMore() {
    const last = past.events.at(-1)?.id;
    most = past.events.length + 2 * PAGE;
    abortOlder.abort();
    abortOlder = new AbortController();
    return read(last, abortOlder.signal, (answer) =>
      past.events.at(-1)?.id === last ? { ...answer, events: [...past.events, ...answer.events] } : past,
    );
  }

  async function read(before, signal, joined) {
    try {
      const answer = await get('api/history', { name, before, limit: PAGE }, signal);
      if (signal.aborted) return;
      past = joined(answer);
    } catch (err) {
      if (signal.aborted) return;
      if (err.status !== 403) pastOf = null; // with the next event again
      put(history, h('p', { class: 'hint' }, `The history cannot be read: ${err.message}`));
      cards.history.hidden = false;
      return;
    }
    put(
      level,
      past.record && !data?.standby
        ? ['Releases are not recorded here, only losses. ', commandText(past.record), ' records every tenure.']
        : '',
    );
    put(history, past.events.length ? historyTable(past.events) : h('p', { class: 'hint' }, 'Nothing is recorded.'));
    cards.history.hidden = false;
    older.hidden = !past.more;
    pictures();
  }

  let drawn = 0;
  return {
    update: (changed) => changed.name === name,
    tick() {
      if (!data) return;
      holderCards.tick();
      if (++drawn % (data.waiters.length > 0 ? 1 : 3) === 0 && !root.querySelector('.canvas:hover')) pictures();
    },
    keys: {
      b: () => root.querySelector('button.danger:not([hidden])')?.click(),
      Escape: () => {
        location.hash = route.home;
      },
    },
    close() {
      abort.abort();
      abortOlder.abort();
      watch.disconnect();
    },
  };
}
