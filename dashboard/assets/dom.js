// Builds elements. Whatever comes from the database goes in as a text node, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

// h makes an element. An attribute of null or false is left out; a function is a listener; class, not className.
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

// s makes an SVG element.
export function s(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...present(children));
  return element;
}

// present leaves out what a condition has left empty.
function present(children) {
  return children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);
}

// put replaces what an element holds.
export function put(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

// write sets a text, and touches the page only if the text is another one.
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// mark sets an attribute or, with null, takes it away; only if that changes something.
export function mark(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, String(value));
  }
}

// morph makes one tree like another by changing as little as possible, so that focus and selection stay. Listeners
// are those of the old tree: they may read attributes and must not remember texts.
export function morph(from, to) {
  if (from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const name of from.getAttributeNames()) if (!to.hasAttribute(name)) from.removeAttribute(name);
  for (const name of to.getAttributeNames()) mark(from, name, to.getAttribute(name));
  const wanted = [...to.childNodes];
  [...from.childNodes].slice(wanted.length).forEach((child) => child.remove());
  wanted.forEach((child, i) => (from.childNodes[i] ? morph(from.childNodes[i], child) : from.append(child)));
}

// Rows keeps the children of an element in step with a list: one child for each key, in the order of the list.
// make(item) returns an object with the child as `element` and a function `update(item)`; tick() calls those of the rows.
export class Rows {
  constructor(parent, key, make) {
    this.parent = parent;
    this.key = key;
    this.make = make;
    this.rows = new Map();
  }

  show(items) {
    const focused = this.parent.contains(document.activeElement) ? document.activeElement : null;
    const old = this.rows;
    const at = focused ? [...this.parent.children].findIndex((c) => c.contains(focused)) : -1;
    this.rows = new Map();
    let next = this.parent.firstChild;
    const wanted = new Set(items.map(this.key));
    for (const [key, row] of old) {
      if (wanted.has(key)) continue;
      if (row.element === next) next = next.nextSibling;
      row.element.remove();
    }
    for (const item of items) {
      const key = this.key(item);
      if (this.rows.has(key)) continue;
      let row = old.get(key);
      if (!row) row = this.make(item);
      row.update(item);
      this.rows.set(key, row);
      if (row.element === next) next = next.nextSibling;
      else this.parent.insertBefore(row.element, next);
    }
    this.keepFocus(focused, at);
  }

  tick() {
    for (const row of this.rows.values()) row.tick();
  }

  // keepFocus returns the focus to where it was; if that row is gone, to the one that is in its place.
  keepFocus(focused, at) {
    if (!focused || document.activeElement === focused) return;
    if (this.parent.contains(focused)) {
      focused.focus({ preventScroll: true });
      return;
    }
    const place = this.parent.children[Math.min(at, this.parent.children.length - 1)];
    place?.querySelector('a, button:not([hidden])')?.focus({ preventScroll: true });
  }
}
