// The picture of budget against extra time: milliseconds at the left, shares of the step at the right.

const SPACE = { left: 66, right: 58, bottom: 48, height: 270, row: 15 };

// The points by ascending budget; `marks` are [bytes, text, kind]; `here` is where a plan stands: {bytes, ms}.
const drawBudgets = (svg, { points, step, marks, here }) => {
  const width = svg.clientWidth;
  if (!width || !points.length) return null;
  const { left, right, bottom, height, row } = SPACE;
  const top = 16 + row * marks.length;
  const [least, largest] = [points[0].budget_bytes, points[points.length - 1].budget_bytes];
  // A mark far from all that can be reached would leave the curve no room.
  const room = Math.max(largest - least, 1) * 0.25;
  const near = marks.map(([value]) => value).filter((value) => value >= least - room && value <= largest + room);
  const [low, high] = [Math.min(least, ...near), Math.max(largest, ...near)];
  const most = Math.max(...points.map((point) => point.recompute_ms), here?.ms ?? 0, 1e-9);
  const within = (value) => Math.max(low, Math.min(high, value));
  const x = (value) => left + ((within(value) - low) / Math.max(high - low, 1)) * (width - left - right);
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const path = (of) => points.map((point, at) => `${at ? "L" : "M"}${x(point.budget_bytes).toFixed(1)} ${y(of(point)).toFixed(1)}`).join("");
  const parts = [];
  for (const value of ticks(most, 4)) {
    parts.push(drawing("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      drawing("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value ? `+${millis(value)}` : "0"),
      step > 0 && drawing("text", { class: "percent", x: width - right + 8, y: y(value) + 4 }, value ? `+${percent(value / step, value / step < 0.1 ? 1 : 0)}` : "0 %"));
  }
  for (const value of ticks(high, (width < 500 ? 3 : 8) * (high / Math.max(high - low, 1)), 1024).filter((tick) => tick >= low)) {
    parts.push(drawing("text", { x: x(value), y: height - bottom + 18, "text-anchor": "middle" }, bytes(value).replace(/\.00 /, " ")));
  }
  parts.push(drawing("text", { class: "axis", x: width - right, y: height - 8, "text-anchor": "end" }, "budget for tensors"),
    drawing("text", { class: "axis", x: 0, y: height - 8 }, "extra time"),
    drawing("path", { class: "bound", d: path((point) => point.lower_bound_ms) }, drawing("title", null, "No plan takes less than this")),
    drawing("path", { class: "line", d: path((point) => point.recompute_ms) }));
  for (const [at, [value, text, kind]] of marks.entries()) {
    const outside = value < low ? "← " : value > high ? "→ " : "";
    const place = x(value);
    const anchor = place > width - right - 110 ? "end" : place < left + 110 ? "start" : "middle";
    if (!outside) parts.push(drawing("line", { class: kind, x1: place, x2: place, y1: top - row * (marks.length - at) + 4, y2: height - bottom }));
    parts.push(drawing("text", { class: `mark ${kind}`, x: place + (anchor === "start" ? 4 : anchor === "end" ? -4 : 0), y: top - row * (marks.length - at), "text-anchor": anchor }, outside + text));
  }
  for (const point of points) {
    const fit = point.fits == null ? "" : point.fits ? ", fits the device" : ", does not fit the device";
    const title = `${bytes(point.budget_bytes)}: ${millis(point.recompute_ms)} more${fit}`;
    parts.push(drawing("circle", { class: point.fits === false ? "unfit" : null, cx: x(point.budget_bytes), cy: y(point.recompute_ms), r: 4 }, drawing("title", null, title)));
  }
  if (here) parts.push(drawing("circle", { class: "here", cx: x(here.bytes), cy: y(here.ms), r: 6.5 }));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts.filter(Boolean));
  return x;
};

// The point of the curve that is nearest to where the pointer is.
const nearestPoint = (points, place, x) => {
  const distance = (point) => Math.abs(place(point.budget_bytes) - x);
  return points.reduce((best, point, index) => (distance(point) < distance(points[best]) ? index : best), 0);
};

// What the picture's marks mean.
const budgetLegend = (items) => element("ul", { class: "legend" }, items.filter(Boolean).map(([kind, text]) =>
  element("li", { class: `key ${kind}` }, text)));
