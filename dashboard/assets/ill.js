// What is wrong in the whole database, whatever the list below shows: a line for each lock that is not well.

import { h, mark, Rows, write } from './dom.js';
import { link } from './route.js';
import { count, escaped, seconds, shown, showIn } from './text.js';
import { countsOf, showVerdict } from './verdict.js';

const STANDBY = 'This server is a standby: it shows the past. The primary alone knows how the locks are.';

// illSection returns the section, which is hidden until show(ill, at) has something for it. at is the server's clock.
export function illSection() {
  const words = h('p', { class: 'ill-words', role: 'status' });
  // Without bullets it is a list only for those browsers that are told so.
  const list = h('ul', { class: 'ill-list', role: 'list', 'aria-labelledby': 'h-ill' });
  const rest = h('p', { class: 'hint' });
  const element = h(
    'section',
    { class: 'ill', 'aria-labelledby': 'h-ill', hidden: true },
    h('div', { class: 'ill-head' }, h('h2', { id: 'h-ill' }, 'What is wrong'), words),
    list,
    rest,
  );
  const rows = new Rows(list, (one) => one.lock, makeLine);
  return {
    element,
    rows,
    counts: '', // what is wrong, for a summary; '' if nothing is
    show({ locks = [], more = 0, all = false, partly = false, standby = false }, at) {
      const came = performance.now();
      rows.show(locks.map((one) => ({ ...one, at, came })));
      this.counts = countsOf(locks);
      const none = all && more === 0 && !partly ? 'All is well.' : 'No trouble was found.';
      write(words, standby ? STANDBY : this.counts || none);
      const unseen = [
        more > 0 ? `${count(more, 'more lock')} may not be well: nobody has looked.` : '',
        partly ? 'Some locks were not looked at.' : '',
      ];
      write(rest, unseen.filter(Boolean).join(' '));
      list.hidden = locks.length === 0;
      rest.hidden = !rest.textContent;
      element.hidden = false;
    },
  };
}

function makeLine(one) {
  const word = h('span', { class: 'severity' });
  const name = one.lock
    ? h('a', { href: link('lock', { name: one.lock }), title: escaped(one.lock) }, shown(one.lock))
    : h('span', { class: 'everything' }, '(all locks)'); // somebody has locked a whole table of pglock
  const text = h('span', { class: 'ill-text' });
  const who = h('span', { class: 'ill-who' });
  const since = h('time', { class: 'number' });
  const waiting = h('span', { class: 'queue' });
  // The spaces are for whoever hears a line, or copies it.
  const part = (...content) => [h('span', { class: 'part' }, ...content), ' '];
  const element = h('li', {}, word, ' ', part(name), part(text), part(who), part(since), part(waiting));
  const row = {
    element,
    opened: false,
    update(changed) {
      one = changed;
      showVerdict(element, word, one.severity);
      write(text, escaped(one.text));
      showIn(who, one.who ?? '');
      write(waiting, one.waiting > 0 ? `${one.waiting} ${one.waiting === 1 ? 'waits' : 'wait'}` : 'nobody waits');
      mark(waiting, 'data-some', one.waiting > 0 ? '' : null);
      mark(since, 'datetime', one.since ?? null);
      mark(since, 'title', one.since ?? null);
      this.tick();
    },
    tick() {
      const age = new Date(one.at) - new Date(one.since) + performance.now() - one.came;
      write(since, one.since ? `for ${seconds(age)}` : '');
    },
  };
  name.addEventListener('click', () => {
    row.opened = true;
  });
  return row;
}
