// Gives the lines of an element as they are drawn, and how many characters fit into one.
(code) => {
  const lines = [];
  let bottom = -Infinity;
  const range = document.createRange();
  const walk = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    for (let i = 0; i < walk.currentNode.length; i++) {
      range.setStart(walk.currentNode, i);
      range.setEnd(walk.currentNode, i + 1);
      const r = range.getBoundingClientRect();
      if (r.height > 0 && r.top + r.height / 2 > bottom) {
        lines.push('');
        bottom = r.bottom;
      }
      lines[lines.length - 1] += walk.currentNode.data[i];
    }
  }
  const ruler = document.createElement('span');
  ruler.textContent = 'x'.repeat(100);
  ruler.style.cssText = 'position: absolute; white-space: pre';
  code.append(ruler);
  const fits = code.getBoundingClientRect().width / (ruler.getBoundingClientRect().width / 100);
  ruler.remove();
  return { lines, fits: Math.floor(fits) };
}
