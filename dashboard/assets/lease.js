// What a lease looks like at this moment: how long it is held, what is left, and a bar.
// Times come as durations from the server's clock, and grow here by the page's monotonic clock.

import { h, write } from './dom.js';
import { seconds } from './text.js';

// received notes on locks when they came, by performance.now().
export function received(locks) {
  const now = performance.now();
  for (const lock of locks) lock.came = now;
  return locks;
}

export const heldFor = (lock) => lock.held_for_ms + performance.now() - lock.came;
export const longestWait = (lock) => lock.longest_wait_ms + performance.now() - lock.came;
const remaining = (lock) => lock.remaining_ms - (performance.now() - lock.came);

// leaseBar returns { element, update(lock) }. It shows what is left by the newest data, which may come late, and does not
// judge: the verdict does. That a lease is over the server says.
export function leaseBar() {
  const fill = h('span', { class: 'fill' });
  const words = h('span', { class: 'left' });
  const element = h('span', { class: 'lease' }, h('span', { class: 'bar', 'aria-hidden': 'true' }, fill), words);
  return {
    element,
    update(lock) {
      const rest = lock.held ? Math.max(0, remaining(lock)) : 0;
      fill.style.setProperty('transform', `scaleX(${Math.min(1, rest / lock.ttl_ms).toFixed(3)})`);
      write(words, lock.held ? seconds(rest) : 'free');
    },
  };
}
