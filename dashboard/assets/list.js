// What the views of a list share: the search, the table, the words where it is empty, and the links to its pages.

import { h, mark, put, Rows } from './dom.js';
import { loading, say } from './notes.js';

const TYPING = 150; // ms without a key before the server is asked

// listPage makes the parts of a list: `head` and `content` are for the page, the rest is for the view. find(text) is
// called when somebody has typed another search.
export function listPage({ heading, what, placeholder, attributes, titles, key, make, find }) {
  let timer;
  const search = h('input', {
    type: 'search',
    id: 'search',
    placeholder,
    autocomplete: 'off',
    spellcheck: 'false',
    'aria-keyshortcuts': '/',
    maxlength: 512,
    input: () => list.typed(),
  });
  const summary = h('p', { class: 'summary', id: 'summary' });
  const heads = titles.map((t) => h('th', { scope: 'col', role: 'columnheader' }, t));
  const body = h('tbody', { role: 'rowgroup' });
  const table = h(
    'table',
    { role: 'table', 'aria-busy': 'true', ...attributes },
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)),
    body,
  );
  table.hidden = true; // until there is something to show
  const waits = loading(what);
  const empty = h('p', { class: 'empty', hidden: true });
  const start = h('a', { class: 'button' }, 'First page');
  const next = h('a', { class: 'button', rel: 'next' }, 'Next page');
  const pager = h('nav', { class: 'pager', 'aria-label': 'Pages', hidden: true }, start, next);

  const list = {
    head: h('div', { class: 'head' }, h('h1', { id: 'title', tabindex: '-1' }, heading), summary),
    content: [waits, table, empty, pager],
    search,
    summary,
    heads,
    body,
    table,
    start,
    next,
    pager,
    rows: new Rows(body, key, make),
    asked: false, // whether to speak the number of results

    // tools is a form with the search, and with what else the view has.
    tools: (...others) =>
      h(
        'form',
        {
          class: 'tools',
          role: 'search',
          submit: (e) => {
            e.preventDefault();
            list.typed(0);
          },
        },
        h('label', { class: 'field wide' }, h('span', {}, 'Search'), search),
        others,
      ),
    typed(wait = TYPING) {
      clearTimeout(timer);
      timer = setTimeout(() => {
        list.asked = true;
        find(search.value);
      }, wait);
    },
    // searched notes what the address asks for, unless somebody is typing something else.
    searched(text = '') {
      if (document.activeElement !== search) search.value = text;
    },
    // show fills the table; nothing() has the words for an empty one.
    show(items, nothing) {
      list.rows.show(items);
      waits.remove();
      table.hidden = items.length === 0;
      empty.hidden = items.length > 0;
      if (items.length === 0) put(empty, nothing());
      mark(table, 'aria-busy', 'false');
    },
    speak(words) {
      if (list.asked) say(words);
      list.asked = false;
    },
    keys: {
      '/': () => search.select(),
      Escape: () => {
        if (search.value) {
          search.value = '';
          list.typed(0);
        }
      },
    },
    close() {
      clearTimeout(timer);
    },
  };
  return list;
}

// cell is a cell of a row, which on a phone shows its label.
export const cell = (label, ...content) => h('td', { role: 'cell', 'data-label': label }, ...content);
