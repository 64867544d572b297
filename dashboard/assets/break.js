// Breaks a lease: a dialog with what is about to end, the reason for the history, and the server's answer in plain words.

import { breakLease } from './api.js';
import { h, put } from './dom.js';
import { heldFor } from './lease.js';
import { open } from './keys.js';
import { note } from './notes.js';
import { facts } from './place.js';
import { escaped, seconds, shown } from './text.js';

const MOST = 1024; // bytes of a reason
const NOTHING = 'Nothing was broken.';
const PERHAPS = 'Perhaps your break ended the lease: its history says.';
const bytes = (text) => new TextEncoder().encode(text).length;

// breakDialog asks for the reason, and breaks the lease that `lock` was when the dialog opened, and no other.
// It returns moved(lock, holders), to call with the present state of the lock's slot, or null when nobody holds it, and
// with the number of all who hold the lock.
export function breakDialog(lock, waiters) {
  const token = String(lock.token);
  const next = waiters.find((w) => w.alive);
  const reason = h('textarea', {
    id: 'reason',
    rows: 2,
    required: true,
    'aria-describedby': 'reason-help',
    autocomplete: 'off',
    placeholder: 'Host is down, ticket OPS-17',
    input: () => problem(''),
  });
  const refusal = h('p', { class: 'refusal', role: 'alert', hidden: true });
  const cancel = h('button', { type: 'button', click: () => dialog.close() }, 'Cancel');
  const confirm = h('button', { type: 'submit', class: 'danger' }, `Break token ${token}`);
  const fact = (term, ...content) => [h('dt', {}, term), h('dd', {}, ...content)];
  const dialog = h(
    'dialog',
    { class: 'dialog break', 'aria-labelledby': 'break-title', 'aria-describedby': 'break-what' },
    h('h2', { id: 'break-title' }, 'Break this lease?'),
    h(
      'form',
      {
        novalidate: true,
        submit: (e) => {
          e.preventDefault();
          send();
        },
      },
      h(
        'dl',
        { class: 'facts' },
        facts.map(([term, text]) => fact(term, shown(text))),
        fact('Lock', shown(lock.name)),
        fact('Holder', shown(lock.holder)),
        fact('Token', token),
        fact('Held for', seconds(heldFor(lock))),
        fact('Next', next ? shown(next.holder) : 'nobody waits'),
      ),
      h(
        'p',
        { id: 'break-what' },
        'The server takes the lock away at once, and refuses this holder’s later renewals and fenced writes. ' +
          'It stops no program: end the process too, if it writes anywhere without a fence.',
      ),
      h('label', { class: 'field' }, h('span', {}, 'Reason, for the history'), reason),
      h('p', { class: 'hint', id: 'reason-help' }, 'Whoever looks at the history of this lock will read it.'),
      refusal,
      h('div', { class: 'buttons' }, cancel, confirm),
    ),
  );

  let over = false; // nothing more can be broken here
  let unknown = false; // a break had no answer, and may have been done

  const outcome = () => (unknown ? PERHAPS : NOTHING);

  function problem(...words) {
    refusal.hidden = words.join('') === '';
    put(refusal, ...words);
  }

  function end(...words) {
    over = true;
    problem(...words);
    confirm.disabled = true;
    cancel.textContent = 'Close';
    cancel.focus();
  }

  async function send() {
    const text = reason.value.trim();
    const n = bytes(text);
    if (n === 0 || n > MOST) {
      problem(
        n === 0 ? 'Give a reason: the history needs one.' : `The reason has ${n} bytes: it must have at most ${MOST}.`,
      );
      reason.focus();
      return;
    }
    problem('');
    confirm.disabled = true;
    confirm.textContent = 'Breaking…';
    cancel.textContent = 'Close'; // which calls nothing off
    try {
      const { broken } = await breakLease(lock, text);
      dialog.close();
      note(`Broken: token ${broken?.token ?? token} of ${escaped(lock.holder)} on ${escaped(lock.name)}.`);
    } catch (err) {
      // A proxy answers with such a status where the server has not answered it.
      const answered = err.own || (err.status && err.status < 500);
      const words = answered
        ? err.message.replace(NOTHING, outcome()) // the server knows of this try alone
        : 'The server did not answer, so it is unknown whether the lease was broken. ' +
          'Look at the lock before you try again.';
      unknown ||= !(err.status < 500); // the server's own words may also be that it does not know
      if (!dialog.open) note(`Token ${token} of ${escaped(lock.holder)} on ${escaped(lock.name)}: ${words}`, 'bad');
      confirm.textContent = `Break token ${token}`;
      if (err.status === 409) {
        end(words);
        return;
      }
      cancel.textContent = 'Cancel';
      confirm.disabled = over;
      problem(words);
    }
  }

  open(dialog);
  reason.focus();
  return {
    moved(present, holders) {
      if (over || !dialog.open || confirm.textContent === 'Breaking…') return;
      if (!present && holders > 0) end(`This lease has ended; others hold the lock. ${outcome()}`);
      else if (!present) end(`Nobody holds this lock any more. ${unknown ? PERHAPS : 'There is nothing to break.'}`);
      else if (String(present.token) !== token) {
        end(
          'The lock has moved on: ',
          shown(present.holder),
          ` holds it now, with token ${present.token}. ${outcome()}`,
        );
      }
    },
  };
}
