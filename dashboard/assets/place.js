// Which locks these are: server, database and schema, on every view, so that nobody breaks a lock elsewhere.

import { h, put } from './dom.js';
import { escaped, shown } from './text.js';

const meta = (name) => document.querySelector(`meta[name="pglock-${name}"]`)?.content ?? '';
const installation = meta('title');
const server = meta('server');
const database = meta('database');
const schema = meta('schema');
const usual = schema === 'pglock';

// place is all of it, as every answer has it.
export const place = meta('place');

// user is whom the header names; '' if nobody is logged in.
export const user = meta('user');

// where names the installation in the tab's title.
export const where =
  installation || `${escaped(server)}, database ${escaped(database)}${usual ? '' : `, schema ${escaped(schema)}`}`;

// facts are what a dialog needs before somebody does harm: terms, each with its text.
export const facts = [['Server', server], ['Database', database], ...(usual ? [] : [['Schema', schema]])];

// showPlace fills the line below the header.
export function showPlace() {
  const part = (...content) => [h('span', { class: 'part' }, ...content), ' '];
  put(
    document.getElementById('place'),
    installation ? part(h('b', {}, shown(installation))) : null,
    part('server ', shown(server)),
    part('database ', shown(database)),
    part('schema ', shown(schema)),
  );
}
