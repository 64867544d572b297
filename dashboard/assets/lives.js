// Says whether a client lives, in the words of the command line.

import { mark, write } from './dom.js';

// What the server's words for a client mean.
const MEANS = {
  alive: 'It gave a sign of life within 15 seconds.',
  silent: 'It gives no sign of life. Its connection is open, or cannot be seen.',
  dead: 'It gives no sign of life, and its connection has ended.',
  unknown: 'Nobody can tell yet: its lease is new, its connection has just ended, or a standby has no sign of it.',
  idle: 'It holds nothing and waits for nothing.',
};

// showLife writes the word into its place in a row. A lock that nobody holds has none.
export function showLife(row, place, life) {
  mark(row, 'data-life', life || null);
  mark(place, 'title', MEANS[life] ?? null);
  write(place, life ?? '');
}
