// The queue of a lock as a picture: who holds it, and the tickets behind, each with a dotted line as long as its wait.

import { s } from './dom.js';
import { escaped, lasted, modeOf, seconds } from './text.js';

// silentWords says of a waiter that its client gives no sign of life. A standby may not have the sign yet. The command
// line says it in the same words.
export const silentWords = (standby) =>
  standby ? 'unknown: no sign of life has arrived on this standby' : 'passed over: no sign of life';

const ROW = 40;
const MOST = 30; // tickets in the picture; the table below has more

// queuePicture draws into a new <svg>, for a place that is `width` wide.
export function queuePicture({ holders: held, waiters, more, standby }, width) {
  const drawn = waiters.slice(0, MOST);
  const left = 27;
  const text = 56;
  const narrow = width < 560;
  const lineFrom = narrow ? text : Math.max(text + 120, Math.round(width * 0.46));
  const lineTo = width - 74;
  const longest = Math.max(1, ...drawn.map((w) => w.waiting_ms));
  const step = narrow ? 56 : ROW;
  const heads = held.length || 1;
  const top = 12;
  const first = top + heads * 46 + 30;
  const rest = more || waiters.length - drawn.length;
  const height = drawn.length === 0 ? first - 18 : first + drawn.length * step + (rest ? 22 : 0);
  const svg = picture('queue-picture', width, height, describe(held, waiters, more, standby));

  if (drawn.length > 0)
    svg.append(
      s('path', { class: 'thread', d: `M${left} ${top + heads * 46}V${first + (drawn.length - 1) * step - 14}` }),
    );
  if (held.length === 0) {
    svg.append(
      s('rect', { class: 'nobody', x: 8, y: top, width: width - 16, height: 38, rx: 5 }),
      label(24, top + 24, 'nobody holds it', { class: 'soft', room: width - 48 }),
    );
  }
  held.forEach((lock, i) => {
    const y = top + i * 46;
    svg.append(
      s('rect', { class: 'holds', x: 8, y, width: width - 16, height: 38, rx: 5 }),
      label(24, y + 24, escaped(lock.holder), { class: 'on strong', room: width - (narrow ? 150 : 320) }),
      s(
        'text',
        { class: 'on', x: width - 22, y: y + 24, 'text-anchor': 'end' },
        (narrow ? '' : `${modeOf(lock) ? modeOf(lock) + ' · ' : ''}held for ${seconds(lock.held_for_ms)} · `) +
          `token ${lock.token}`,
      ),
    );
  });

  drawn.forEach((w, i) => {
    const y = first + i * step;
    const dead = !w.alive && !standby;
    const turn = w.alive && !standby && held.length === 0 && i === drawn.findIndex((d) => d.alive);
    svg.append(
      s(
        'g',
        {},
        w.mode === 'exclusive' && !w.subtree
          ? null
          : s('title', {}, `${escaped(w.holder)}: ${w.subtree ? modeOf(w) : w.mode}`),
        s('circle', { class: dead ? 'place dead' : 'place', cx: left, cy: y, r: 14 }),
        s(
          'text',
          { class: dead ? 'place-number soft' : 'place-number on', x: left, y: y + 5, 'text-anchor': 'middle' },
          String(w.place),
        ),
      ),
      label(text, narrow ? y - 2 : y + 5, escaped(w.holder), {
        class: dead ? 'soft struck' : 'ink',
        room: narrow ? width - text - 8 : lineFrom - text - 16,
      }),
    );
    const long = Math.max(2, (lineTo - lineFrom) * (w.waiting_ms / longest));
    const lineY = narrow ? y + 16 : y;
    if (!w.alive) {
      svg.append(label(lineFrom, lineY + 5, silentWords(standby), { class: 'soft', room: width - lineFrom - 8 }));
      return;
    }
    svg.append(
      s('path', { class: 'wait', d: `M${lineFrom} ${lineY}h${long.toFixed(0)}` }),
      s(
        'text',
        { class: 'soft', x: lineFrom + long + 10, y: lineY + 5 },
        `${lasted(w.waiting_ms)}${!turn ? '' : w.behind_lock ? ', another lock is in the way' : ', its turn'}`,
      ),
    );
  });
  if (rest) {
    svg.append(
      s('text', { class: 'soft', x: text, y: height - 6 }, more ? 'and more, below' : `and ${rest} more, below`),
    );
  }
  return svg;
}

function describe(held, waiters, more, standby) {
  const who =
    held.length === 0 ? 'Nobody holds the lock.' : `Held by ${held.map((l) => escaped(l.holder)).join(', ')}.`;
  if (waiters.length === 0) return `${who} Nobody waits.`;
  const does = (w) => (w.alive ? `waiting for ${lasted(w.waiting_ms)}` : silentWords(standby));
  const queue = waiters.slice(0, 5).map((w) => `${w.place}: ${escaped(w.holder)}, ${does(w)}`);
  const rest = waiters.length > 5 ? '; and so on' : '';
  return `${who} ${waiters.length}${more ? ' or more' : ''} in the queue. ${queue.join('; ')}${rest}.`;
}

// picture makes an <svg>, which screen readers hear as words.
export function picture(name, width, height, words) {
  return s('svg', {
    class: `picture ${name}`,
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: 'img',
    'aria-label': words,
  });
}

// label is a text that fit shortens to its room once it is on the page; a title has all of it.
export function label(x, y, words, { class: name, room, anchor = 'start' }) {
  const text = s(
    'text',
    { class: name, x, y, 'text-anchor': anchor, 'data-room': Math.max(20, Math.floor(room)) },
    words,
  );
  return s('g', {}, s('title', {}, words), text);
}

// fit shortens every label of a picture that is on the page.
export function fit(svg) {
  for (const text of svg.querySelectorAll('[data-room]')) {
    const room = Number(text.dataset.room);
    if (text.getComputedTextLength() <= room) continue;
    const chars = [...text.textContent];
    let low = 1;
    let high = chars.length;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      text.textContent = chars.slice(0, middle).join('') + '…';
      if (text.getComputedTextLength() <= room) low = middle;
      else high = middle - 1;
    }
    text.textContent = chars.slice(0, low).join('') + '…';
  }
}
