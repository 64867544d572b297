// Turns what the server says into words: durations, moments, and texts that cannot pretend to be others.

import { h, put } from './dom.js';

// What a reader does not see, or what changes the order of what they see: controls, formats, fillers, odd spaces.
const UNSEEN = new RegExp(
  '[\\p{Cc}\\p{Cf}\\p{Co}\\p{Cn}\\p{Cs}\\p{Zl}\\p{Zp}\\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000' +
    '\\u115f\\u1160\\u2800\\u3164\\uffa0\\u034f\\u17b4\\u17b5\\ufe00-\\ufe0f\\u{e0100}-\\u{e01ef}]|^ +| +$',
  'gu',
);

function escapeOf(match) {
  if (match[0] === ' ') return '\\x20'.repeat(match.length);
  const code = match.codePointAt(0);
  if (code === 10) return '\\n';
  if (code === 9) return '\\t';
  if (code < 0x80) return '\\x' + code.toString(16).padStart(2, '0');
  if (code <= 0xffff) return '\\u' + code.toString(16).padStart(4, '0');
  return '\\U' + code.toString(16).padStart(8, '0');
}

// escaped returns the text with an escape for everything that hides, as the command line writes it.
export function escaped(text) {
  return String(text ?? '').replace(UNSEEN, escapeOf);
}

// shown returns an element with the text, its escapes set apart, isolated from the direction of what is around it.
export function shown(text, attributes = {}) {
  const element = h('bdi', { class: 'text', ...attributes });
  const whole = String(text ?? '');
  let from = 0;
  for (const match of whole.matchAll(UNSEEN)) {
    if (attributes['data-code'] && match[0][0] === ' ') continue; // what code is indented by is no trick
    element.append(whole.slice(from, match.index));
    element.append(h('span', { class: 'escape' }, escapeOf(match[0])));
    from = match.index + match[0].length;
  }
  element.append(whole.slice(from));
  return element;
}

// showIn shows a text in an element, with all of it for the mouse, or `otherwise` where it is empty. It changes nothing
// if the text is the one from before.
export function showIn(element, text, otherwise = null) {
  if (element.dataset.of === text) return;
  element.dataset.of = text;
  put(element, text ? shown(text, { title: escaped(text) }) : otherwise);
}

// lasted writes milliseconds as people say them: 0.4s, 8.3s, 1m 1s, 2h 5m, 3d 4h.
export function lasted(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms < 0) ms = 0;
  if (ms < 9950) return (Math.floor(ms / 100) / 10).toFixed(1) + 's';
  const all = Math.floor(ms / 1000);
  return twoUnits(all);
}

// seconds is lasted without tenths, for what changes every second.
export function seconds(ms) {
  if (!Number.isFinite(ms)) return '–';
  return twoUnits(Math.max(0, Math.floor(ms / 1000)));
}

function twoUnits(all) {
  const parts = [
    ['d', Math.floor(all / 86400)],
    ['h', Math.floor(all / 3600) % 24],
    ['m', Math.floor(all / 60) % 60],
    ['s', all % 60],
  ];
  const first = parts.findIndex(([, n]) => n > 0);
  if (first < 0) return '0s';
  return parts
    .slice(first, first + 2)
    .filter(([, n]) => n > 0)
    .map(([unit, n]) => n + unit)
    .join(' ');
}

const two = (n) => String(n).padStart(2, '0');

// dateOf writes a day of the reader's clock.
export const dateOf = (d) => `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;

// clock writes a moment by the reader's clock, with the date if that is not today.
export function clock(moment) {
  const d = new Date(moment);
  if (!moment || Number.isNaN(d.getTime())) return '–';
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return d.toDateString() === new Date().toDateString() ? time : `${dateOf(d)} ${time}`;
}

// moment returns a <time> with the reader's clock and, for the mouse and for machines, the server's words.
export function moment(value) {
  return h('time', { datetime: value ?? '', title: value ?? '' }, clock(value));
}

export function count(n, one, many = one + 's') {
  return `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
}

// modeOf says how a lock is shared, and whether it covers a subtree; nothing for an exclusive one that does not.
export function modeOf(lock) {
  if (lock.subtree) return `${lock.mode} subtree`;
  if (lock.mode === 'shared') return 'shared';
  if (lock.mode === 'limit') return lock.slot ? `${lock.slot} of ${lock.limit}` : `up to ${lock.limit}`;
  return '';
}

// pretty writes metadata as text with line breaks; what is not JSON stays as it is.
export function pretty(metadata) {
  if (metadata === null || metadata === undefined) return '';
  try {
    return JSON.stringify(typeof metadata === 'string' ? JSON.parse(metadata) : metadata, null, 2);
  } catch {
    return String(metadata);
  }
}
