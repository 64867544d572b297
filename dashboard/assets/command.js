// Shows commands. On a narrow screen a command wraps between its arguments, and a flag stays with its value; what
// people select and copy is still one line.

import { h } from './dom.js';
import { note } from './notes.js';
import { shown } from './text.js';

// A word of a shell or of SQL: whatever has no space outside quotes. A quote that nobody closes goes to the end.
const WORD = /(?:[^\s'"\\]|\\.|'[^']*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|\\?$)|\\$)+/gsu;

// argumentsOf splits a command into what should stay together, and the spaces between, so that the parts add up to the
// command.
export function argumentsOf(command) {
  const parts = [];
  let from = 0;
  for (const word of command.matchAll(WORD)) {
    const space = command.slice(from, word.index);
    const flag = parts.at(-1);
    from = word.index + word[0].length;
    if (space === ' ' && /^--?[\w-]+$/.test(flag ?? '') && !word[0].startsWith('-')) {
      parts[parts.length - 1] = `${flag} ${word[0]}`;
      continue;
    }
    if (space) parts.push(space);
    parts.push(word[0]);
  }
  return from < command.length ? [...parts, command.slice(from)] : parts;
}

// commandText is the element with a command.
export function commandText(command) {
  const piece = (text) => shown(text, { 'data-code': true });
  const solid = (text) => h('span', { class: 'solid' }, piece(text));
  return h(
    'code',
    { class: 'one-line' },
    argumentsOf(command).map((part) => {
      if (!part.trim()) return piece(part);
      const words = part.split(/( +)/); // of a part that is longer than the line
      return words.length === 1
        ? solid(part)
        : h(
            'span',
            { class: 'solid' },
            words.map((word) => (word.trim() ? solid(word) : piece(word))),
          );
    }),
  );
}

// Three clicks select the end of the line too. A shell would run such a command as soon as somebody pastes it.
document.addEventListener('copy', (e) => {
  const selection = getSelection();
  const line = selection.toString().replace(/^\n+|\n+$/g, '');
  const codes = [...document.querySelectorAll('.one-line')].filter((code) => selection.containsNode(code, true));
  if (!line || !codes.some((code) => code.textContent.includes(line))) return;
  e.clipboardData.setData('text/plain', line);
  e.preventDefault();
});

// commandOf is a step's command with its button, as it is to be pasted.
export function commandOf(one) {
  const words =
    one.run === 'pglock-admin' && !one.command.startsWith('pglock-admin') ? `pglock-admin ${one.command}` : one.command;
  return h('div', { class: 'command' }, commandText(words), copyButton('Copy the command', words));
}

// copyButton puts a text on the clipboard, as it is.
function copyButton(label, text) {
  return h(
    'button',
    {
      type: 'button',
      class: 'copy',
      'aria-label': label,
      title: label,
      'data-copy': text,
      click: async (e) => {
        try {
          await navigator.clipboard.writeText(e.currentTarget.dataset.copy);
          note('Copied.');
        } catch {
          note('The browser does not let this page copy.', 'bad');
        }
      },
    },
    'Copy',
  );
}
