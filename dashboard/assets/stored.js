// What a reader has chosen, which the browser keeps where it may.

// recall returns what was chosen, or null.
export function recall(name) {
  try {
    return localStorage.getItem(`pglock-${name}`);
  } catch {
    return null;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(`pglock-${name}`, value);
  } catch {
    /* it lasts as long as the page, at most */
  }
}
