// The parts of the view of one lock: findings, holders, and the tables.

import { commandOf, commandText } from './command.js';
import { h, write } from './dom.js';
import { heldFor, leaseBar } from './lease.js';
import { silentWords } from './queue.js';
import { link } from './route.js';
import { escaped, lasted, modeOf, moment, pretty, seconds, shown } from './text.js';
import { wordOf } from './verdict.js';

// whyList shows the verdicts of an Explanation, the gravest first, each with what to do. The first is that of the lock.
export function whyList(why) {
  if (!why) return [h('p', { class: 'hint' }, 'Nobody can tell now whether anything is wrong.')];
  return [
    verdicts(why.verdicts ?? []),
    (why.unseen ?? []).map((text) => h('p', { class: 'hint' }, 'Not seen: ', shown(text))),
  ];
}

function verdicts(all) {
  return h(
    'ol',
    { class: 'verdicts' },
    all.map((v, i) =>
      h(
        'li',
        { class: 'verdict', 'data-severity': v.severity },
        h(
          'p',
          { class: 'verdict-text' },
          i > 0 ? h('span', { class: 'soft' }, 'Also: ') : null,
          h('span', { class: 'severity' }, wordOf(v.severity)),
          ' ',
          shown(v.text),
        ),
        v.because ? h('p', { class: 'hint' }, shown(v.because)) : null,
        v.if_nothing ? h('p', { class: 'hint' }, 'If nobody does anything: ', shown(v.if_nothing)) : null,
        v.steps?.length ? h('ol', { class: 'steps' }, v.steps.map(step)) : null,
      ),
    ),
  );
}

function step(one) {
  return h(
    'li',
    {},
    h('p', {}, shown(one.do)),
    one.command ? commandOf(one) : null,
    one.effect || one.needs
      ? h('p', { class: 'hint' }, shown([one.effect, one.needs ? `Needs ${one.needs}.` : ''].filter(Boolean).join(' ')))
      : null,
  );
}

const lines = (text) =>
  text.split('\n').map((line, i) => [i > 0 ? '\n' : null, shown(line, { 'data-code': true })]);

// breakButton opens the dialog that breaks a lease.
export const breakButton = (attributes) =>
  h('button', { type: 'button', class: 'danger', ...attributes }, 'Break lease…');

// holderCard returns { element, update(lock), tick() } for one lease. Its button, which calls onBreak(lock), is there
// while lock.breakable is true.
export function holderCard(lock, onBreak) {
  const button = breakButton({
    click: () => onBreak(lock),
    'aria-label': `Break the lease of ${escaped(lock.holder)}`,
  });
  const held = h('dd', {});
  const lease = leaseBar();
  const renewed = h('dd', {});
  const fact = (term, ...content) => h('div', {}, h('dt', {}, term), ...content);
  const metadata = pretty(lock.metadata);
  const element = h(
    'article',
    { class: 'holder-card', 'aria-label': `Holder ${escaped(lock.holder)}` },
    h('div', { class: 'holder-head' }, h('h3', {}, shown(lock.holder)), button),
    h(
      'dl',
      { class: 'facts' },
      fact('Token', h('dd', {}, String(lock.token))),
      modeOf(lock)
        ? fact('Mode', h('dd', {}, lock.mode === 'limit' ? `place ${lock.slot} of ${lock.limit}` : modeOf(lock)))
        : null,
      fact('Held for', held),
      fact('Lease', h('dd', {}, lease.element)),
      fact('Renewed', renewed),
      fact(
        'Session',
        h(
          'dd',
          {},
          h('a', { href: link('sessions', { match: lock.holder }) }, shown(String(lock.session).slice(0, 8))),
        ),
      ),
      metadata && metadata !== '{}'
        ? h(
            'div',
            { class: 'whole' },
            h('dt', {}, 'Metadata'),
            h('dd', {}, h('pre', { tabindex: '0', 'aria-label': 'Metadata' }, lines(metadata))),
          )
        : null,
    ),
  );
  return {
    element,
    update(changed) {
      lock = changed;
      button.hidden = !lock.breakable;
      this.tick();
    },
    tick() {
      write(held, seconds(heldFor(lock)));
      lease.update(lock);
      const seen = new Date(lock.expires_at) - lock.remaining_ms; // by the server's clock: a lease may be extended
      const ago = seen - new Date(lock.renewed_at) + performance.now() - lock.came;
      write(renewed, new Date(lock.renewed_at) - new Date(lock.acquired_at) < 1 ? 'not yet' : `${seconds(ago)} ago`);
    },
  };
}

function table(name, heads, rows) {
  const head = heads.map((words) => h('th', { scope: 'col' }, words));
  const cells = (row) => row.map((content) => h('td', {}, content));
  const body = rows.map((row) => h('tr', {}, cells(row)));
  return h(
    'table',
    { class: 'plain-table', 'aria-label': name },
    h('thead', {}, h('tr', {}, head)),
    h('tbody', {}, body),
  );
}

export function queueTable({ waiters, all_waiters: command, standby }) {
  return [
    table(
      'Queue',
      ['Place', 'Ticket', 'Mode', 'Holder', 'Waiting', 'Behind'],
      waiters.map((w) => [
        String(w.place),
        String(w.ticket),
        w.subtree ? modeOf(w) : w.mode,
        shown(w.holder),
        lasted(w.waiting_ms),
        w.alive ? behind(w) : silentWords(standby),
      ]),
    ),
    command ? h('p', { class: 'hint' }, 'More wait. ', commandText(command), ' lists them all.') : null,
  ];
}

// behind says whom a waiter waits for, and for which other lock, if that is in the way.
const behind = (w) => (w.behind_lock ? `${escaped(w.behind_lock)} of ${escaped(w.behind)}` : shown(w.behind));

export function fencesTable({ fences, holders, lock }) {
  const tokens = (holders.length > 0 ? holders : [lock]).map((l) => String(l.token));
  const whose = (token) => {
    if (tokens.includes(String(token))) return holders.length > 0 ? 'by the present token' : 'by the last token';
    return tokens.every((t) => BigInt(token) > BigInt(t)) ? 'by a later token' : 'by an earlier token';
  };
  return table(
    'Fences',
    ['Resource', 'Highest token', 'Written at', ''],
    fences.map((f) => [shown(f.resource), String(f.last_token), moment(f.advanced_at), whose(f.last_token)]),
  );
}

const KINDS = {
  release: 'released',
  handover: 'handed over',
  takeover: 'ran out, taken over',
  break: 'broken',
  bypass: 'guards bypassed',
  epoch: 'epoch advanced',
  expired: 'ran out',
  overlap: 'overlap',
  level: 'history set',
};

export function historyTable(events) {
  return table(
    'History',
    ['When', 'What', 'Token', 'Holder', 'Held for', 'By and why'],
    events.map((e) => {
      const from = e.granted_at ? new Date(e.granted_at) : null;
      const to = new Date(e.ended_at ?? e.at);
      return [
        moment(e.ended_at ?? e.at),
        h('span', { class: 'kind', 'data-kind': e.kind }, KINDS[e.kind] ?? e.kind),
        String(e.token) === '0' ? '–' : String(e.token),
        e.holder ? shown(e.holder) : '–',
        from && from.getFullYear() > 1 ? seconds(to - from) : '–',
        [e.actor ? shown(e.actor) : null, e.actor && e.reason ? ': ' : null, e.reason ? shown(e.reason) : null],
      ];
    }),
  );
}
