// The server's verdicts, in the words of the command line. The server alone judges: nothing here does.

import { mark, write } from './dom.js';

const MEANS = {
  ok: 'As it should be.',
  busy: 'Somebody waits. The holder lives, and nobody knows how far its work is; or its lease ends in a moment.',
  note: 'Good to know.',
  warning: 'Something is wrong, and nobody waits in vain yet.',
  stuck: 'Somebody waits in vain, or soon will.',
};

const UNSEEN = 'Nobody has looked: too many locks may not be well, or time was short.';

// wordOf is how everybody sees a severity. Without one nobody has looked.
export const wordOf = (severity) => (severity ? String(severity).toUpperCase() : '?');

// showVerdict writes the word into its place in a row, and gives the row the severity, which has a colour.
export function showVerdict(row, place, severity) {
  mark(row, 'data-severity', severity || null);
  mark(place, 'title', severity ? (MEANS[severity] ?? null) : UNSEEN);
  write(place, wordOf(severity));
}

// countsOf says how many there are of each severity, in the order in which they come: "2 stuck, 1 warning".
export function countsOf(verdicts) {
  const numbers = new Map();
  for (const { severity } of verdicts) numbers.set(severity, (numbers.get(severity) ?? 0) + 1);
  return [...numbers]
    .map(([severity, n]) => `${n} ${severity}${n > 1 && severity !== 'stuck' ? 's' : ''}`)
    .join(', ');
}
