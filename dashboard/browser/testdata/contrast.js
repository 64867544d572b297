// Lists texts whose contrast with what is behind them is below 4.5 to 1.
(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const parse = (c) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = c;
    canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data;
    return [d[0], d[1], d[2], d[3] / 255];
  };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const light = (c) => {
    const [r, g, b] = c.map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    const layers = [];
    for (let n = e; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor);
      if (c[3] > 0) layers.push(c);
      if (c[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (
      !walk.currentNode.textContent.trim() ||
      !e.checkVisibility() ||
      e.closest('.unseen, noscript, [disabled], title, .skip')
    )
      continue;
    const style = getComputedStyle(e);
    let ground = behind(e),
      ink = style.color;
    if (e instanceof SVGElement) {
      ink = style.fill;
      const r = e.getBoundingClientRect(),
        x = r.x + r.width / 2,
        y = r.y + r.height / 2;
      for (const s of e.ownerSVGElement.querySelectorAll('rect, circle')) {
        const b = s.getBoundingClientRect(),
          f = getComputedStyle(s);
        if (f.fill !== 'none' && b.x <= x && x <= b.right && b.y <= y && y <= b.bottom) {
          const c = parse(f.fill);
          c[3] *= f.fillOpacity;
          ground = over(c, ground);
        }
      }
    }
    const a = light(over(parse(ink), ground)),
      b = light(ground);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5)
      bad.push(
        ratio.toFixed(2) + ' to 1: ' + e.tagName + ' ' + JSON.stringify(walk.currentNode.textContent.slice(0, 40)),
      );
  }
  return [...new Set(bad)];
})();
