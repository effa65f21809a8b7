// The memory of a step over its operators, stacked by category. What belongs to both charts is the axis's.

const MARGIN = { left: 62, right: 12, top: 22, bottom: 24 };

class MemoryChart {
  constructor(parent, id, axis, onPoint) {
    Object.assign(this, { axis, onPoint, cursor: null, pinned: null, drag: null });
    this.caption = element("strong");
    this.detail = element("small");
    this.canvas = element("canvas", { id, tabindex: "0", role: "application" });
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    this.canvas.addEventListener("pointerup", (event) => this.released(event));
    this.canvas.addEventListener("pointerleave", () => this.left());
    this.canvas.addEventListener("pointercancel", () => this.left());
    this.canvas.addEventListener("dblclick", () => this.axis.show(0, this.axis.length));
    this.canvas.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.typed(event));
    this.figure = element("figure", null, element("figcaption", null, this.caption, this.detail), this.canvas);
    parent.append(this.figure);
    axis.charts.push(this);
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  // `behind` is the step whose outline is drawn behind this one.
  set(caption, steps, highest, budget, behind) {
    Object.assign(this, { steps, highest, budget, behind, cursor: null, pinned: null, drag: null });
    this.caption.textContent = caption;
    const peak = bytes(steps.totals[steps.peak]);
    this.canvas.setAttribute("aria-label", `${caption}: peak ${peak}, after ${sentence(steps, steps.peak)}`);
    this.redraw();
  }

  goToPeak() {
    const { axis, steps } = this;
    const [middle, width] = [axis.middle(steps, steps.peak), Math.max(axis.closest, axis.length / 20)];
    axis.show(middle - width / 2, middle + width / 2);
    this.pin(steps.peak);
  }

  // Clicking keeps a point, and clicking near it lets it go.
  pin(point) {
    for (const chart of this.axis.charts) chart.pinned = null;
    this.pinned = point;
    this.point(point);
  }

  // Both charts show the place; what is there is said of this one.
  point(point, pointer = null) {
    const place = this.axis.middle(this.steps, point);
    for (const chart of this.axis.charts) {
      chart.cursor = place;
      chart.draw();
    }
    this.onPoint(this, point, pointer);
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

  get isPinned() {
    return this.axis.charts.some((chart) => chart.pinned != null);
  }

  // The point that a column of the picture shows: the highest of those that fall into it.
  pointAt(x) {
    return this.columns[Math.max(0, Math.min(this.columns.length - 1, Math.floor(x - MARGIN.left)))];
  }

  placeAt(x) {
    const [start, end] = this.axis.view;
    return start + ((x - MARGIN.left) / this.plot.width) * (end - start);
  }

  moved(event) {
    if (!this.steps) return;
    if (this.drag != null) {
      this.drag.to = event.offsetX;
      this.draw();
      return;
    }
    if (event.pointerType === "touch") return;
    const point = this.pointAt(event.offsetX);
    if (this.isPinned) this.onPoint(this, point, event, true);
    else this.point(point, event);
  }

  pressed(event) {
    if (event.button !== 0 || event.pointerType === "touch") return;
    this.drag = { from: event.offsetX, to: event.offsetX };
    this.canvas.setPointerCapture(event.pointerId);
  }

  released(event) {
    if (event.button !== 0 || !this.steps) return;
    const drag = this.drag ?? { from: event.offsetX, to: event.offsetX };
    this.drag = null;
    if (Math.abs(drag.to - drag.from) > 5) {
      const [low, high] = [drag.from, drag.to].sort((a, b) => a - b);
      this.axis.show(this.placeAt(low), this.placeAt(high));
      return;
    }
    const near = this.pinned != null && Math.abs(this.x(this.axis.middle(this.steps, this.pinned)) - event.offsetX) < 4;
    if (near) {
      this.pinned = null;
      this.draw();
    } else {
      this.pin(this.pointAt(event.offsetX));
    }
  }

  left() {
    this.drag = null;
    this.onPoint(this, null, null);
    const { isPinned } = this;
    for (const chart of this.axis.charts) {
      if (!isPinned) chart.cursor = null;
      chart.draw();
    }
  }

  wheeled(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.axis.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.placeAt(event.offsetX));
  }

  // The next point that has a width: views are passed over.
  beside(point, by) {
    const starts = this.axis.starts.get(this.steps);
    let to = point + by;
    while (to > 0 && to < this.steps.length - 1 && starts[to + 1] === starts[to]) to += by;
    return Math.max(0, Math.min(this.steps.length - 1, to));
  }

  typed(event) {
    const { axis, steps } = this;
    const here = this.pinned ?? (this.cursor == null ? steps.peak : axis.pointAt(steps, this.cursor));
    const width = axis.view[1] - axis.view[0];
    const go = (to) => {
      const place = axis.middle(steps, to);
      if (place < axis.view[0]) axis.show(place, place + width);
      if (place > axis.view[1]) axis.show(place - width, place);
      this.pin(to);
    };
    const far = (sign) => axis.pointAt(steps, axis.middle(steps, here) + (sign * width) / 50);
    const step = (sign) => go(event.shiftKey ? far(sign) : this.beside(here, sign));
    const around = this.cursor ?? undefined;
    const keys = {
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      Home: () => go(0),
      End: () => go(steps.length - 1),
      "+": () => axis.zoom(0.5, around),
      "=": () => axis.zoom(0.5, around),
      "-": () => axis.zoom(2, around),
      0: () => axis.show(0, axis.length),
      p: () => this.goToPeak(),
      P: () => this.goToPeak(),
      Escape: () => {
        for (const chart of axis.charts) chart.pinned = null;
        axis.redraw();
      },
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  x(place) {
    const [start, end] = this.axis.view;
    return MARGIN.left + ((place - start) / (end - start)) * this.plot.width;
  }

  y(value) {
    return MARGIN.top + (1 - value / this.highest) * this.plot.height;
  }

  // Only with a new part of the step, another size or other colours is the whole picture drawn again.
  redraw() {
    this.picture = null;
    this.draw();
  }

  describe() {
    const { axis, steps } = this;
    const [first, last] = axis.view.map((place) => steps.moment(axis.pointAt(steps, place)) + 1);
    this.detail.textContent = axis.isWhole
      ? `${count(steps.runs)} ${steps.runs === 1 ? "operator runs" : "operators run"}; peak ${bytes(steps.totals[steps.peak])}`
      : `operators ${count(first)} to ${count(last)} of ${count(steps.runs)}`;
  }

  draw() {
    if (!this.steps || !this.canvas.clientWidth) return;
    const scale = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    const [width, height] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (!this.picture) {
      this.describe();
      this.picture = element("canvas", { width, height });
      const pen = this.picture.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.font = "12px system-ui, sans-serif";
      this.columns = this.thinned(this.steps);
      this.drawGrid(pen);
      const behind = this.behind && this.thinned(this.behind).map((point) => this.y(this.behind.totals[point]));
      if (behind) this.drawBehind(pen, behind);
      this.drawStack(pen);
      if (behind) this.drawOutline(pen, behind);
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
  thinned(steps) {
    const starts = this.axis.starts.get(steps);
    const columns = Math.max(1, Math.floor(this.plot.width));
    const [start, end] = this.axis.view;
    const found = [];
    let point = this.axis.pointAt(steps, start);
    for (let column = 0; column < columns; column++) {
      const until = start + ((column + 1) * (end - start)) / columns;
      let highest = point;
      while (point + 1 < steps.length && starts[point + 1] < until) {
        point += 1;
        if (steps.totals[point] > steps.totals[highest]) highest = point;
      }
      found.push(highest);
    }
    return found;
  }

  drawBehind(pen, heights) {
    const bottom = this.y(0);
    pen.fillStyle = color("behind");
    heights.forEach((top, column) => pen.fillRect(MARGIN.left + column, top, 1.02, bottom - top));
  }

  drawOutline(pen, heights) {
    pen.strokeStyle = color("soft");
    pen.lineWidth = 1;
    pen.beginPath();
    heights.forEach((y, column) => pen.lineTo(MARGIN.left + column + 0.5, y));
    pen.stroke();
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
      const right = this.x(this.axis.middle(steps, steps.peak)) < MARGIN.left + this.plot.width / 2;
      pen.textAlign = right ? "right" : "left";
      this.label(pen, `budget ${bytes(this.budget)}`, right ? MARGIN.left + this.plot.width - 6 : MARGIN.left + 6, y - 4, color("bad"));
    }
    const peak = this.axis.middle(steps, steps.peak);
    if (peak >= this.axis.view[0] && peak <= this.axis.view[1]) {
      const [x, y] = [this.x(peak), this.y(steps.totals[steps.peak])];
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
    const [start, end] = this.axis.view;
    if (this.cursor != null && this.cursor >= start && this.cursor <= end) {
      this.vertical(pen, this.x(this.cursor), color("ink"), this.isPinned ? [] : [3, 3]);
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
