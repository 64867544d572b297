// Tells people what happened: a note on the page, or words for a screen reader alone.

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

const where = document.querySelector('meta[name="pglock-title"]')?.content;

// title says the state in the tab: the view's words, and which installation this is.
export function title(words) {
  document.title = `${words} – ${where ? where + ' – ' : ''}pglock`;
}
