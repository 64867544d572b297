// What a lease looks like at this moment: how long it is held, what is left, and a bar.
// Times come as durations from the server's clock, and grow here by the page's monotonic clock.

import { h, mark, write } from './dom.js';
import { seconds } from './text.js';

// received notes on locks when they came, by performance.now().
export function received(locks) {
  const now = performance.now();
  for (const lock of locks) lock.came = now;
  return locks;
}

export const heldFor = (lock) => lock.held_for_ms + performance.now() - lock.came;
export const longestWait = (lock) => lock.longest_wait_ms + performance.now() - lock.came;
export const remaining = (lock) => lock.remaining_ms - (performance.now() - lock.came);

// condition is free, fine, late or over. A live holder renews when a third of the TTL is gone, so one below a half is
// late.
export function condition(lock) {
  if (!lock.held) return 'free';
  const rest = remaining(lock);
  if (rest <= 0) return 'over';
  return rest < lock.ttl_ms / 2 ? 'late' : 'fine';
}

const ADVICE = {
  free: '',
  fine: 'The holder renews in time.',
  late: 'The holder is late: it should have renewed when a third of the lease was gone.',
  over: 'The lease has run out. The next to ask gets the lock.',
};

// leaseBar returns { element, update(lock) }.
export function leaseBar() {
  const fill = h('span', { class: 'fill' });
  const words = h('span', { class: 'left' });
  const state = h('span', { class: 'state' });
  const element = h('span', { class: 'lease' }, h('span', { class: 'bar', 'aria-hidden': 'true' }, fill), words, state);
  return {
    element,
    update(lock) {
      const is = condition(lock);
      mark(element, 'data-is', is);
      mark(element, 'title', ADVICE[is]);
      const part = is === 'free' || is === 'over' ? 0 : Math.min(1, remaining(lock) / lock.ttl_ms);
      fill.style.setProperty('transform', `scaleX(${part.toFixed(3)})`);
      write(words, is === 'free' ? 'free' : is === 'over' ? 'run out' : seconds(remaining(lock)));
      write(state, is === 'late' ? ' late' : '');
    },
  };
}
