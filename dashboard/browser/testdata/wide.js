// Lists what ends outside a phone.
[...document.querySelectorAll('body *')]
  .filter((e) => e.getBoundingClientRect().right > 361)
  .map((e) => e.tagName + '.' + e.className)
  .slice(0, 5)
  .join(', ');
