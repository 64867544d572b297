// Who held a lock, over time: a line for each holder, a bar with its token for each tenure, a sign for how it ended.

import { s } from './dom.js';
import { label, picture } from './queue.js';
import { clock, count, dateOf, escaped, seconds } from './text.js';

const LANE = 42;
const MOST = 7; // holders with a line of their own

// tenures makes one list, oldest first, of what the history has and what is held now.
export function tenures(events, holders, at) {
  const now = new Date(at).getTime();
  const list = [];
  for (const e of events) {
    if (!(e.kind in ENDS)) continue;
    const to = new Date(e.ended_at ?? e.at).getTime();
    const from = e.granted_at ? new Date(e.granted_at).getTime() : to;
    list.push({
      holder: e.holder ?? '',
      token: String(e.token),
      from: Math.min(from, to),
      to,
      end: e.kind,
      reason: e.reason,
      new: e.new_token,
    });
  }
  for (const lock of holders) {
    list.push({
      holder: lock.holder,
      token: lock.token,
      from: now - lock.held_for_ms,
      to: now,
      end: '',
      until: now + Math.max(0, lock.remaining_ms),
    });
  }
  return list.sort((a, b) => a.from - b.from || a.to - b.to);
}

// timeline draws the last `most` tenures.
export function timeline(all, at, width, most = 12) {
  const list = all.slice(-most);
  const now = new Date(at).getTime();
  const narrow = width < 560;
  const names = narrow ? 0 : Math.min(230, Math.round(width * 0.28));
  const x0 = narrow ? 8 : names + 8;
  const x1 = width - 14;
  const start = list.length ? list[0].from : now - 60_000;
  const last = Math.max(now, ...list.map((t) => t.until ?? t.to));
  const span = Math.max(1000, last - start);
  const x = (t) => x0 + ((t - start) / span) * (x1 - x0);

  // The newest holders come first; the others share the last line.
  const order = [];
  for (const t of [...list].reverse()) if (!order.includes(t.holder)) order.push(t.holder);
  const lanes = order.slice(0, MOST);
  const others = order.length > MOST;
  const step = narrow ? 58 : LANE;
  const top = 30;
  const rows = lanes.length + (others ? 1 : 0);
  const height = top + rows * step + 10;
  const svg = picture('timeline-picture', width, height, describe(list, now));

  for (const tick of ticks(start, last, narrow ? 3 : 6)) {
    if (x(tick.at) < x0 + 4 || x(tick.at) > x1 - 4) continue;
    svg.append(
      s('path', { class: 'grid', d: `M${x(tick.at).toFixed(1)} ${top - 6}V${height - 6}` }),
      s('text', { class: 'soft small', x: x(tick.at), y: top - 13, 'text-anchor': 'middle' }, tick.words),
    );
  }
  const xNow = x(now);
  svg.append(s('path', { class: 'now', d: `M${xNow.toFixed(1)} ${top - 6}V${height - 6}` }));

  const laneOf = (t) => {
    const i = lanes.indexOf(t.holder);
    return i < 0 ? lanes.length : i;
  };
  lanes.concat(others ? [''] : []).forEach((holder, i) => {
    const words = i < lanes.length ? escaped(holder) : `${count(order.length - MOST, 'other')}`;
    const y = top + i * step;
    svg.append(
      narrow
        ? label(x0, y + 14, words, { class: 'ink small', room: width - 16 })
        : label(names - 6, y + 26, words, { class: 'ink', room: names - 14, anchor: 'end' }),
    );
  });
  for (const t of list) {
    const lane = laneOf(t);
    bar(svg, t, lane, top + lane * step + (narrow ? 20 : 6), x);
  }
  return svg;
}

function bar(svg, t, lane, y, x) {
  const from = x(t.from);
  const to = Math.max(x(t.to), from + 3);
  const tall = 30;
  const colour = lane % 2 === 0 ? 'a' : 'b';
  const g = s('g', { class: 'tenure' }, s('title', {}, tell(t)));
  if (t.until)
    g.append(
      s('rect', {
        class: `rest ${colour}-rest`,
        x: to,
        y,
        width: Math.max(1, x(t.until) - to).toFixed(1),
        height: tall,
      }),
    );
  g.append(
    s('rect', {
      class: `tenure-bar ${colour}`,
      x: from.toFixed(1),
      y,
      width: (to - from).toFixed(1),
      height: tall,
      rx: Math.min(4, (to - from) / 2),
    }),
  );
  const words = String(t.token);
  if (to - from > words.length * 8 + 14)
    g.append(s('text', { class: 'on strong', x: (from + to) / 2, y: y + 20, 'text-anchor': 'middle' }, words));
  if (t.end) g.append(sign(t.end, to, y + tall / 2));
  svg.append(g);
}

// sign draws how a tenure ended: a green dot, a green arrow, a red cross, a red bar, or a red triangle. The legend has
// the same.
export function sign(end, x, y) {
  const at = `translate(${Number(x).toFixed(1)} ${y})`;
  switch (end) {
    case 'release':
      return s('circle', { class: 'end good', transform: at, r: 5 });
    case 'handover':
      return s('path', { class: 'end good', transform: at, d: 'M-5 -6 6 0 -5 6z' });
    case 'takeover':
    case 'expired':
      return s(
        'g',
        { transform: at },
        s('circle', { class: 'end ground', r: 8 }),
        s('path', { class: 'cross', d: 'M-4 -4 4 4M4 -4 -4 4' }),
      );
    case 'overlap':
      return s('path', { class: 'end bad', transform: at, d: 'M0 -11 11 9H-11z' });
    default:
      return s(
        'g',
        { transform: at },
        s('rect', { class: 'end ground', x: -5, y: -19, width: 10, height: 38 }),
        s('rect', { class: 'end bad', x: -3, y: -18, width: 6, height: 36, rx: 1.5 }),
      );
  }
}

export const ENDS = {
  release: 'released',
  handover: 'handed over',
  takeover: 'ran out: the holder was lost, and the next took the lock',
  expired: 'ran out, and nobody took the lock',
  break: 'broken by an operator',
  overlap: 'overlap: granted again too early',
};

function tell(t) {
  const how = t.end ? `${ENDS[t.end]}${t.reason ? `: ${escaped(t.reason)}` : ''}` : 'held now';
  const when = `${clock(t.from)} to ${t.end ? clock(t.to) : 'now'}, ${seconds(t.to - t.from)}`;
  return `token ${t.token}, ${escaped(t.holder)}\n${when}\n${how}`;
}

function describe(list, now) {
  if (list.length === 0) return 'Nothing to draw.';
  const words = list
    .slice(-6)
    .map(
      (t) =>
        `token ${t.token}, ${escaped(t.holder)}, for ${seconds(t.to - t.from)}, ${t.end ? ENDS[t.end] : 'held now'}`,
    );
  const span = seconds(now - list[0].from);
  return `${count(list.length, 'tenure')} in ${span}. The last: ${words.join('; ')}. The table below has them all.`;
}

const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000,
  31536000,
];

// ticks chooses round moments of the reader's clock.
function ticks(from, to, most) {
  const step = (STEPS.find((n) => (to - from) / 1000 / n <= most) ?? STEPS.at(-1)) * 1000;
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  const list = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) {
    const d = new Date(at);
    const time = d.toTimeString().slice(0, step < 60_000 ? 8 : 5);
    list.push({ at, words: step >= 86_400_000 ? dateOf(d) : time });
  }
  return list;
}
