// What a reader has chosen, which the browser keeps where it may.

const kept = new Map(); // as long as the page, where it may not

// recall returns what was chosen, or null.
export function recall(name) {
  if (kept.has(name)) return kept.get(name);
  try {
    return localStorage.getItem(`pglock-${name}`);
  } catch {
    return null;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(`pglock-${name}`, value);
    kept.delete(name);
  } catch {
    kept.set(name, value);
  }
}
