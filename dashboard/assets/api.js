// Talks to the server: requests, and streams that stay open and come back.

import { place, user } from './place.js';
import { queryOf } from './route.js';
import { escaped } from './text.js';

const base = new URL('.', document.baseURI);
base.username = base.password = ''; // fetch refuses an address with credentials; the browser sends them anyway

// Large is a number as it was written. A token has up to 63 bits, and JavaScript's numbers have 53.
class Large {
  constructor(source) {
    this.source = source;
  }
  toString() {
    return this.source;
  }
  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : this.source;
  }
}

export function parse(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === 'number' && context?.source && String(value) !== context.source
      ? new Large(context.source)
      : value,
  );
}

// Refused is an answer that is no success: its status, and its words. own: they are this server's, and no proxy's.
export class Refused extends Error {
  constructor(status, message, own = false) {
    super(message);
    this.status = status;
    this.own = own;
  }
}

function address(path, query = {}) {
  const url = new URL(path, base);
  url.search = queryOf(query);
  return url;
}

async function refused(response) {
  let words = '';
  let own = false;
  const text = await response.text().catch(() => '');
  try {
    words = JSON.parse(text).error;
    own = Boolean(words);
  } catch {
    words = response.headers.get('Content-Type')?.startsWith('text/plain') ? text.trim() : '';
  }
  const status = `the server answered ${response.status} ${response.statusText}`.trim();
  return new Refused(response.status, words || status, own);
}

// check refuses what is no answer of this server: an error, or somebody's page for a login.
async function check(response, kind) {
  if (!response.ok) throw await refused(response);
  if (!response.headers.get('Content-Type')?.startsWith(kind)) {
    throw new Refused(401, 'the answer is no data. Perhaps you have to log in again: load the page again');
  }
  return response;
}

// here refuses data of another database than that of the page, as when a tunnel now leads elsewhere.
function here(data) {
  if (data.place === place) return data;
  const now = `this address leads to another database now: ${escaped(data.place)}`;
  throw new Refused(409, `${now}. Load the page again`);
}

const ANSWER = 35_000; // the server answers, if only that the database does not, well within this time
const BREAK = 45_000; // likewise for a break, and a look why it was none
const silence = () => new Error('the server has been silent for too long');

async function ask(url, request) {
  const response = await check(await fetch(url, request), 'application/json');
  return parse(await response.text());
}

// get asks once, until signal ends it or there is no answer for too long.
export async function get(path, query, signal) {
  const own = new AbortController();
  const stop = () => own.abort(signal.reason);
  signal.addEventListener('abort', stop);
  const timer = setTimeout(() => own.abort(silence()), ANSWER);
  try {
    return here(await ask(address(path, query), { signal: own.signal, headers: { Accept: 'application/json' } }));
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', stop);
  }
}

// breakLease ends this lease in the page's database, and no other, for the history in the name of whom the page names.
// Leases of two databases may have the same name and the same token, but not the same moment of their grant.
export async function breakLease(lease, reason) {
  const digits = String(lease.token);
  if (!/^[0-9]+$/.test(digits)) throw new Refused(400, `token is ${digits}: it must be a number`);
  return ask(address('api/break'), {
    method: 'POST',
    signal: AbortSignal.timeout(BREAK),
    headers: { 'Content-Type': 'application/json' },
    body:
      `{"name":${JSON.stringify(lease.name)},"token":${digits},"reason":${JSON.stringify(reason)},` +
      `"place":${JSON.stringify(place)},"user":${JSON.stringify(user)},` +
      `"acquired_at":${JSON.stringify(lease.acquired_at)}}`,
  });
}

const QUIET = 45_000; // the server says something, if only a comment, well within this time
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5_000;

// stream reads server-sent events until close is called, and connects again whenever it ends. It does not use
// EventSource, which tells neither the status of a refusal nor that a connection is only silent.
//   event(type, data)   for each event
//   state(name, words)  'connecting', 'lost' with the reason, or 'refused' with the server's words and status
export function stream(query, { event, state }) {
  let closed = false;
  let pause = FIRST_PAUSE;
  let wake = () => {};
  let current = new AbortController();

  async function once() {
    const own = (current = new AbortController());
    let watchdog;
    let heard = false;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => own.abort(silence()), QUIET);
    };
    try {
      alive();
      const response = await fetch(address('api/stream', query), {
        signal: own.signal,
        cache: 'no-store',
        headers: { Accept: 'text/event-stream' },
      });
      await check(response, 'text/event-stream');
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          if (heard) return; // its time was up: connect again, and say nothing
          throw new Error('the server closed the connection');
        }
        heard = true;
        alive();
        const blocks = (rest + value).split('\n\n');
        rest = blocks.pop();
        for (const block of blocks) tell(block);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  function tell(block) {
    let type = 'message';
    const data = [];
    for (const line of block.split('\n')) {
      if (line.startsWith('event:')) type = line.slice(6).trim();
      else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
    }
    if (closed || data.length === 0) return;
    const said = here(parse(data.join('\n')));
    pause = FIRST_PAUSE;
    event(type, said);
  }

  async function run() {
    while (!closed) {
      try {
        await once();
        await new Promise((resolve) => {
          setTimeout(resolve, FIRST_PAUSE);
        });
      } catch (err) {
        if (closed) return;
        const wait = pause * (0.75 + Math.random() / 2);
        pause = Math.min(pause * 2, LONGEST_PAUSE);
        if (err instanceof Refused) state('refused', err.message, err.status);
        else state('lost', current.signal.reason?.message ?? 'the server cannot be reached');
        current.abort(); // the answer may go on
        await new Promise((resolve) => {
          const timer = setTimeout(resolve, wait);
          wake = () => {
            clearTimeout(timer);
            resolve();
          };
        });
        if (!closed) state('connecting');
      }
    }
  }

  state('connecting');
  run();
  return {
    // retry connects now instead of after the pause.
    retry() {
      pause = FIRST_PAUSE;
      wake();
    },
    close() {
      closed = true;
      current.abort();
      wake();
    },
  };
}
