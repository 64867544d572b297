// Says whether what the page shows is true now: the sign in the header, the banner, and the mark on old data.

import { stream } from './api.js';
import { write } from './dom.js';
import { say, titleOld } from './notes.js';
import { clock, seconds } from './text.js';

const PATIENCE = 2_000; // how long a view waits for its first data before the header says so
const REST = 60_000; // how long a hidden page keeps its connection, of which a browser has few
const UNSEEN = 5_000; // the same of a page that nobody has seen yet: tabs are opened many at a time
const ASLEEP = 10_000; // without a tick

const $ = (id) => document.getElementById(id);
const WORDS = {
  connecting: 'connecting',
  live: 'live',
  lost: 'not connected',
  problem: 'no data', // the database, a right or a place among the streams is lacking: the banner says which
  refused: 'refused',
  resting: 'paused',
  none: '',
};

let open = null; // the stream of the view
let subject = null; // what the view asked for, to ask again
let now = 'connecting';
let fresh = 0; // when the last data came, by performance.now()
let freshAt = null; // the same, by the clock, which goes on while the machine sleeps
let trouble = '';
let late = false; // what the page shows may be old, and nothing has come since it noticed
let slow;

// live says whether the data on the page is of this moment.
export const live = () => now === 'live';

// follow opens the stream of a view; the one before ends. missing(words) is called if the server has no such thing.
export function follow(query, event, missing = null) {
  leave();
  subject = { query, event, missing };
  connect();
}

// leave ends the stream of a view that goes away.
export function leave() {
  open?.close();
  open = null;
  subject = null;
  again = null;
  if (now === 'none') change('connecting');
}

// rest says that the view shows no data.
export function rest() {
  change('none');
}

// touched notes that data has come, by a stream or by a request.
export function touched() {
  fresh = performance.now();
  freshAt = new Date();
  change('live');
}

// failed notes that a request without a stream had no answer, or was refused.
export function failed(err) {
  change(err.status ? (err.status >= 500 ? 'problem' : 'refused') : 'lost', err.message);
}

function connect() {
  const { query, event, missing } = subject;
  const since = performance.now();
  ticked = Date.now(); // a hidden page has few ticks, and rests: its data is of this moment when it is back
  open = stream(query, {
    event(type, data) {
      if (type === 'problem' && data.status === 404 && missing) {
        touched();
        missing(data.error);
        return;
      }
      if (type === 'problem') {
        change('problem', data.error);
        return;
      }
      touched();
      event(type, data);
    },
    state(name, words, status) {
      if (name === 'refused' && status >= 500) change('problem', words);
      else if (name === 'lost' || name === 'refused' || (name === 'connecting' && now === 'resting'))
        change(name, words);
    },
  });
  clearTimeout(slow);
  slow = setTimeout(() => {
    if (now === 'live' && fresh < since) change('connecting');
  }, PATIENCE);
}

function change(name, words = '') {
  if (name === now && words === trouble) return;
  now = name;
  trouble = words;
  if (name === 'resting') late = true;
  else if (name === 'live' || name === 'none') late = false;
  draw();
}

// doubt says that the data is old, until some comes.
function doubt() {
  late = true;
  if (now === 'live') change('connecting');
  else draw();
}

function sentence() {
  const age = freshAt ? ` Below is what was true at ${clock(freshAt)}, ${seconds(Date.now() - freshAt)} ago.` : '';
  switch (now) {
    case 'lost':
      return `The connection is lost: ${ended(trouble)}${age} The page keeps trying.`;
    case 'problem':
      return `${ended(trouble)}${age} The page keeps trying.`;
    case 'refused':
      return `The server refuses: ${ended(trouble)}${age}`;
    default:
      return '';
  }
}

const ended = (words) => (/[.!?]$/.test(words) ? words : words + '.');

let drawn = '';

function draw() {
  document.documentElement.dataset.link = now;
  write($('link-text'), WORDS[now]);
  const bad = now === 'lost' || now === 'problem' || now === 'refused';
  const old = bad || now === 'resting' || (now === 'connecting' && late);
  document.documentElement.classList.toggle('old', old);
  $('banner').hidden = !bad;
  titleOld(old);
  if (!bad) {
    if (drawn && now === 'live') say('Connected again. The data is live.');
    drawn = '';
  } else if (drawn !== now + trouble) {
    drawn = now + trouble;
    write($('banner-text'), sentence());
    say(sentence());
  }
}

let ticked = Date.now();

// tick lets the age of old data grow, every second. A page that has had no second for long was asleep with its machine,
// whose timers and performance.now stand still: its data may be hours old. A hidden page has perhaps only few ticks.
export function tick() {
  const asleep = Date.now() - ticked > ASLEEP;
  ticked = Date.now();
  if (asleep && document.hidden && open) pause();
  else if (asleep && (open || again)) wake();
  if (drawn) write($('banner-text'), sentence());
}

function wake() {
  doubt();
  if (!open) {
    again();
    return;
  }
  open.close();
  connect();
}

function pause() {
  if (!open) return;
  open.close();
  open = null;
  change('resting');
}

let resting;

// attend connects a page that people see, and lets a hidden one rest after a while.
function attend(patience) {
  clearTimeout(resting);
  if (document.hidden) {
    resting = setTimeout(pause, patience);
  } else if (!open && subject) connect();
}

document.addEventListener('visibilitychange', () => attend(REST));
attend(UNSEEN);
window.addEventListener('online', () => open?.retry());
window.addEventListener('pageshow', (e) => {
  if (e.persisted && subject) {
    doubt();
    open?.close();
    connect();
  }
});

let again = null; // of a view without a stream

// retryWith has f called when somebody does not want to wait for the next try.
export function retryWith(f) {
  again = f;
}

$('retry').addEventListener('click', () => {
  if (open) open.retry();
  else again?.();
});
