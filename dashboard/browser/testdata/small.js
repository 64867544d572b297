// Lists controls that are hard to hit with a finger.
[...document.querySelectorAll('button, select, input, a.button, nav a')]
  .filter((e) => e.checkVisibility() && !e.closest('label.check'))
  .filter((e) => {
    const r = e.getBoundingClientRect();
    return r.width > 0 && (r.width < 24 || r.height < 24);
  })
  .map((e) => e.outerHTML.slice(0, 100));
