// The memory of a step over its operators, stacked by category.

const MARGIN = { left: 74, right: 12, top: 24, bottom: 24 };
const CLOSEST = 12;

class MemoryChart {
  constructor(parent, id, onPoint) {
    this.onPoint = onPoint;
    this.caption = element("strong");
    this.detail = element("small");
    const tool = (label, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, label);
    const tools = element("span", { class: "tools" },
      tool("+", "Zoom in", () => this.zoom(0.5)),
      tool("−", "Zoom out", () => this.zoom(2)),
      tool("All", "Show the whole step", () => this.show(0, this.steps.length)),
      tool("Peak", "Go to the peak", () => this.goToPeak()));
    this.canvas = element("canvas", { id, tabindex: "0", role: "application" });
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    this.canvas.addEventListener("pointerup", (event) => this.released(event));
    this.canvas.addEventListener("pointerleave", () => this.left());
    this.canvas.addEventListener("pointercancel", () => this.left());
    this.canvas.addEventListener("dblclick", () => this.show(0, this.steps.length));
    this.canvas.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.typed(event));
    this.figure = element("figure", null, element("figcaption", null, this.caption, this.detail, tools), this.canvas);
    parent.append(this.figure);
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  set(caption, steps, highest, budget) {
    const same = this.steps && this.steps.length === steps.length;
    Object.assign(this, { steps, highest, budget, cursor: null, pinned: null, drag: null });
    this.caption.textContent = caption;
    if (!same) [this.start, this.end] = [0, steps.length];
    this.show(this.start, this.end);
  }

  // Only with a new part of the step, another size or other colours is the whole picture drawn again.
  show(start, end) {
    this.picture = null;
    const least = Math.min(CLOSEST, this.steps.length);
    const width = Math.max(least, Math.min(this.steps.length, Math.round(end - start)));
    this.start = Math.max(0, Math.min(this.steps.length - width, Math.round(start)));
    this.end = this.start + width;
    const { steps } = this;
    const first = steps.moment(this.start) + 1;
    const last = this.end === steps.length ? steps.runs : steps.moment(this.end - 1) + 1;
    this.detail.textContent = this.end - this.start === steps.length
      ? `${count(steps.runs)} ${steps.runs === 1 ? "operator runs" : "operators run"}; peak ${bytes(steps.totals[steps.peak])}`
      : `operators ${count(first)} to ${count(last)} of ${count(steps.runs)}`;
    this.canvas.setAttribute("aria-label",
      `${this.caption.textContent}: peak ${bytes(steps.totals[steps.peak])}, after ${sentence(steps, steps.peak)}`);
    this.draw();
  }

  zoom(factor) {
    const seen = [this.cursor, this.pinned].find((point) => point != null && point >= this.start && point < this.end);
    const around = seen ?? (this.start + this.end) / 2;
    const width = (this.end - this.start) * factor;
    const share = (around - this.start) / (this.end - this.start);
    this.show(around - share * width, around + (1 - share) * width);
  }

  goToPeak() {
    const width = Math.max(CLOSEST, this.steps.length / 20);
    this.show(this.steps.peak - width / 2, this.steps.peak + width / 2);
    this.pin(this.steps.peak);
  }

  // Clicking keeps a point, and clicking near it lets it go.
  pin(point) {
    this.pinned = point;
    this.cursor = null;
    this.onPoint(this, point);
    this.draw();
  }

  get hidden() {
    return this.figure.hidden;
  }

  set hidden(hidden) {
    this.figure.hidden = hidden;
  }

  get plot() {
    const { clientWidth, clientHeight } = this.canvas;
    return {
      width: Math.max(1, clientWidth - MARGIN.left - MARGIN.right),
      height: Math.max(1, clientHeight - MARGIN.top - MARGIN.bottom),
    };
  }

  // The point that a column of the picture shows: the highest of those that fall into it.
  pointAt(x) {
    return this.columns[Math.max(0, Math.min(this.columns.length - 1, Math.floor(x - MARGIN.left)))];
  }

  moved(event) {
    const x = event.offsetX;
    if (this.drag != null) {
      this.drag.to = x;
      this.draw();
      return;
    }
    this.cursor = this.pointAt(x);
    if (this.pinned == null) this.onPoint(this, this.cursor);
    this.draw();
  }

  pressed(event) {
    if (event.button !== 0 || event.pointerType === "touch") return;
    this.drag = { from: event.offsetX, to: event.offsetX };
    this.canvas.setPointerCapture(event.pointerId);
  }

  released(event) {
    if (event.button !== 0) return;
    const drag = this.drag ?? { from: event.offsetX, to: event.offsetX };
    this.drag = null;
    if (Math.abs(drag.to - drag.from) > 5) {
      const [low, high] = [drag.from, drag.to].sort((a, b) => a - b);
      const per = (this.end - this.start) / this.plot.width;
      this.show(this.start + (low - MARGIN.left) * per, this.start + (high - MARGIN.left) * per);
      return;
    }
    const point = this.pointAt(event.offsetX);
    const near = this.pinned != null && Math.abs(this.x(this.pinned) - event.offsetX) < 4;
    if (near) this.pinned = null;
    else this.pin(point);
    this.draw();
  }

  left() {
    this.cursor = null;
    this.drag = null;
    this.draw();
  }

  wheeled(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
  }

  typed(event) {
    const here = this.cursor ?? this.pinned ?? this.steps.peak;
    const far = event.shiftKey ? Math.max(1, Math.round((this.end - this.start) / 50)) : 1;
    const go = (point) => {
      const to = Math.max(0, Math.min(this.steps.length - 1, point));
      const width = this.end - this.start;
      if (to < this.start) this.show(to, to + width);
      if (to >= this.end) this.show(to - width + 1, to + 1);
      this.pin(to);
    };
    const keys = {
      ArrowLeft: () => go(here - far),
      ArrowRight: () => go(here + far),
      Home: () => go(0),
      End: () => go(this.steps.length - 1),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.show(0, this.steps.length),
      p: () => this.goToPeak(),
      P: () => this.goToPeak(),
      Escape: () => {
        this.pinned = null;
        this.draw();
      },
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  x(point) {
    return MARGIN.left + ((point + 0.5 - this.start) / (this.end - this.start)) * this.plot.width;
  }

  y(value) {
    return MARGIN.top + (1 - value / this.highest) * this.plot.height;
  }

  redraw() {
    this.picture = null;
    this.draw();
  }

  draw() {
    if (!this.steps || !this.canvas.clientWidth) return;
    const scale = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    const [width, height] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (!this.picture) {
      this.picture = element("canvas", { width, height });
      const pen = this.picture.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.font = "12px system-ui, sans-serif";
      this.thin();
      this.drawGrid(pen);
      this.drawStack(pen);
      this.drawPhases(pen);
      this.drawMarks(pen);
      Object.assign(this.canvas, { width, height });
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.drawImage(this.picture, 0, 0);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawCursor(pen);
  }

  // For every column of the picture, its highest point: no peak is lost.
  thin() {
    const columns = Math.max(1, Math.floor(this.plot.width));
    const per = (this.end - this.start) / columns;
    this.columns = [];
    for (let column = 0; column < columns; column++) {
      const first = Math.min(this.end - 1, Math.floor(this.start + column * per));
      const last = Math.max(first + 1, Math.min(this.end, Math.floor(this.start + (column + 1) * per)));
      let highest = first;
      for (let point = first; point < last; point++) {
        if (this.steps.totals[point] > this.steps.totals[highest]) highest = point;
      }
      this.columns.push(highest);
    }
  }

  drawGrid(pen) {
    pen.strokeStyle = color("line");
    pen.fillStyle = color("soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(this.highest, 5, 1024)) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(MARGIN.left, y);
      pen.lineTo(MARGIN.left + this.plot.width, y);
      pen.stroke();
      pen.fillText(bytes(value).replace(/\.00 /, " "), MARGIN.left - 8, y);
    }
  }

  drawStack(pen) {
    const base = new Float64Array(this.columns.length);
    const { left } = MARGIN;
    for (const category of STACK) {
      const values = this.steps.categories[category];
      pen.fillStyle = color(CATEGORIES[category]);
      pen.beginPath();
      for (let column = 0; column < this.columns.length; column++) {
        const value = values[this.columns[column]];
        if (value > 0) {
          const top = this.y(base[column] + value);
          pen.rect(left + column, top, 1.02, this.y(base[column]) - top);
          base[column] += value;
        }
      }
      pen.fill();
    }
  }

  drawPhases(pen) {
    const name = (point) => (this.steps.again(point) ? 3 : ops.phase[this.steps.op(point)]);
    const bottom = MARGIN.top + this.plot.height;
    pen.textAlign = "left";
    pen.textBaseline = "top";
    // Recomputation comes in small pieces, and belongs to backward.
    const phase = (point) => (name(point) === 3 ? 1 : name(point));
    let from = 0;
    for (let column = 0; column < this.columns.length; column++) {
      if (name(this.columns[column]) === 3) {
        pen.fillStyle = color("bad");
        pen.fillRect(MARGIN.left + column, bottom + 2, 1.02, 4);
      }
      const ends = column + 1 === this.columns.length || phase(this.columns[column + 1]) !== phase(this.columns[column]);
      if (!ends) continue;
      const label = PHASES[phase(this.columns[column])];
      pen.fillStyle = color("soft");
      const last = column + 1 === this.columns.length;
      const wide = pen.measureText(label).width + 8;
      pen.textAlign = last && column - from <= wide ? "right" : "left";
      const at = pen.textAlign === "right" ? MARGIN.left + column : MARGIN.left + from + 4;
      if (column - from > wide || last && column > 2 * wide) pen.fillText(label, at, bottom + 8);
      if (column + 1 < this.columns.length) this.vertical(pen, MARGIN.left + column + 1, color("soft"), [2, 3]);
      from = column + 1;
    }
  }

  drawMarks(pen) {
    const { steps } = this;
    pen.textBaseline = "bottom";
    if (this.budget != null && this.budget <= this.highest) {
      const y = this.y(this.budget);
      const ends = [[MARGIN.left, y], [MARGIN.left + this.plot.width, y]];
      // Red is hard to see on most of the categories.
      this.line(pen, ...ends, color("paper"), [], 4);
      this.line(pen, ...ends, color("bad"), [6, 4], 1.5);
      // On the side where the peak is not.
      const right = this.x(steps.peak) < MARGIN.left + this.plot.width / 2;
      pen.textAlign = right ? "right" : "left";
      this.label(pen, `budget ${bytes(this.budget)}`, right ? MARGIN.left + this.plot.width - 6 : MARGIN.left + 6, y - 4, color("bad"));
    }
    if (steps.peak >= this.start && steps.peak < this.end) {
      const [x, y] = [this.x(steps.peak), this.y(steps.totals[steps.peak])];
      pen.fillStyle = color("ink");
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x - 5, y - 7);
      pen.lineTo(x + 5, y - 7);
      pen.fill();
      const label = `peak ${bytes(steps.totals[steps.peak])}`;
      const half = pen.measureText(label).width / 2;
      pen.textAlign = "center";
      const at = Math.max(MARGIN.left + half, Math.min(MARGIN.left + this.plot.width - half, x));
      this.label(pen, label, at, Math.max(14, y - 8), color("ink"));
    }
  }

  drawCursor(pen) {
    for (const [point, dash] of [[this.pinned, []], [this.cursor, [3, 3]]]) {
      if (point != null && point >= this.start && point < this.end) this.vertical(pen, this.x(point), color("ink"), dash);
    }
    if (this.drag && this.drag.to !== this.drag.from) {
      pen.fillStyle = color("select");
      pen.fillRect(this.drag.from, MARGIN.top, this.drag.to - this.drag.from, this.plot.height);
    }
  }

  vertical(pen, x, ink, dash) {
    this.line(pen, [x, MARGIN.top], [x, MARGIN.top + this.plot.height], ink, dash);
  }

  // Text that is seen on any ground.
  label(pen, text, x, y, ink) {
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeStyle = color("paper");
    pen.strokeText(text, x, y);
    pen.fillStyle = ink;
    pen.fillText(text, x, y);
  }

  line(pen, from, to, ink, dash, width = 1) {
    pen.save();
    pen.lineWidth = width;
    pen.strokeStyle = ink;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.stroke();
    pen.restore();
  }
}
