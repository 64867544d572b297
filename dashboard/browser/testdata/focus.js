// Says what has the focus, and whether that can be seen.
(() => {
  const e = document.activeElement;
  if (e === document.body) return '';
  const s = getComputedStyle(e);
  return (
    (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 ? 'shown ' : 'hidden ') + e.outerHTML.slice(0, 120)
  );
})();
