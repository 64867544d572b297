// Tells people what happened: a note on the page, or words for a screen reader alone.

import { h } from './dom.js';
import { where } from './place.js';

const $ = (id) => document.getElementById(id);

let timer;

// note shows a sentence for a while, and screen readers speak it.
export function note(text, kind = 'good') {
  const box = $('note');
  clearTimeout(timer);
  box.dataset.kind = kind;
  box.textContent = text;
  timer = setTimeout(() => {
    box.textContent = '';
  }, 12_000);
}

// say speaks a sentence, politely, and shows nothing.
export function say(text) {
  $('said').textContent = text;
}

// loading is what a view shows before its first data.
export const loading = (what) => h('p', { class: 'loading' }, `The page loads ${what}…`);

let words = '';
let old = false;

// title says the state in the tab: the view's words, and which installation this is.
export function title(text) {
  words = text;
  document.title = `${old ? 'OLD: ' : ''}${words ? words + ' – ' : ''}${where} – pglock`;
}

// titleOld says that what the title says is not of this moment.
export function titleOld(is) {
  old = is;
  title(words);
}
