// Sets the chosen colours before anything is drawn. It is no module, because a module would run after the first paint.
'use strict';
(() => {
  try {
    const chosen = localStorage.getItem('pglock-theme');
    if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
  } catch {
    /* a browser without storage follows the system */
  }
})();
