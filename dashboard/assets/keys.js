// The keyboard: single keys, which people can turn off, and the dialog that lists them.

import { h } from './dom.js';
import { keep, recall } from './stored.js';

const LIST = [
  ['/', 'search'],
  ['↓ ↑ or j k', 'next or previous lock'],
  ['Enter', 'open the lock'],
  ['n', 'sort by name'],
  ['a', 'sort by age'],
  ['w', 'sort by waiting'],
  ['e', 'sort by expiry'],
  ['b', 'break the lock that is open'],
  ['Esc', 'clear the search, close a dialog, or go back to the list'],
  ['1', 'locks'],
  ['2', 'sessions'],
  ['t', 'colours: as the system, light, dark'],
  ['?', 'this list'],
];

const enabled = () => recall('keys') !== 'off';
const enable = (on) => keep('keys', on ? 'on' : 'off');

const typing = (element) => element?.closest('input:not([type=checkbox]), textarea, select, [contenteditable]');

// shortcuts calls the function of a key: those of the page, and those of the view, which ofView returns.
export function shortcuts(ofPage, ofView) {
  document.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || document.querySelector('dialog[open]')) return;
    const keys = { ...ofPage, ...ofView() };
    if (e.key === 'Escape' && keys.Escape) {
      keys.Escape(e);
      return;
    }
    const arrow = e.key === 'ArrowDown' || e.key === 'ArrowUp';
    if (typing(e.target) && !(e.key === 'ArrowDown' && e.target.type === 'search')) return;
    if (!arrow && !enabled()) return;
    if (!keys[e.key]) return;
    e.preventDefault();
    keys[e.key](e);
  });
}

// help shows the list.
export function help() {
  const box = h('input', { type: 'checkbox', id: 'keys-on', change: () => enable(box.checked) });
  box.checked = enabled();
  const dialog = h(
    'dialog',
    { class: 'dialog', 'aria-labelledby': 'help-title' },
    h('h2', { id: 'help-title' }, 'Keyboard'),
    h(
      'table',
      { class: 'keys' },
      h(
        'tbody',
        {},
        LIST.map(([key, what]) => h('tr', {}, h('th', { scope: 'row' }, h('kbd', {}, key)), h('td', {}, what))),
      ),
    ),
    h('p', {}, h('label', {}, box, ' Single keys are on')),
    h('form', { method: 'dialog', class: 'buttons' }, h('button', { class: 'main' }, 'Close')),
  );
  open(dialog);
}

// open shows a dialog, and takes it away when it closes. The browser returns the focus to where it was.
export function open(dialog) {
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
