// Allocated and reserved bytes over the events of the record.

const EDGE = { left: 74, right: 12, top: 12, bottom: 22 };

// A canvas in the pixels of the screen, cleared.
const cleared = (canvas, height) => {
  const scale = devicePixelRatio || 1;
  if (height) canvas.style.height = `${height}px`;
  const { clientWidth, clientHeight } = canvas;
  [canvas.width, canvas.height] = [Math.max(1, clientWidth * scale), Math.max(1, clientHeight * scale)];
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  paint.clearRect(0, 0, clientWidth, clientHeight);
  paint.font = "12px system-ui, sans-serif";
  return paint;
};

class TimeChart {
  constructor(canvas, detail, points, events, moment, capacity) {
    Object.assign(this, { canvas, detail, points, events, moment, capacity, cursor: null });
    this.highest = Math.max(1, capacity ?? 0, ...points.map((point) => point[2])) * 1.04;
    canvas.addEventListener("pointermove", (event) => this.point(this.nearest(event.offsetX)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.typed(event));
    canvas.setAttribute("aria-label", `Memory over ${count(events)} events: at most ${bytes(Math.max(...points.map((point) => point[1])))} allocated`);
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  x(event) {
    return EDGE.left + (this.canvas.clientWidth - EDGE.left - EDGE.right) * event / Math.max(1, this.events);
  }

  y(value) {
    const height = this.canvas.clientHeight - EDGE.top - EDGE.bottom;
    return EDGE.top + height * (1 - value / this.highest);
  }

  nearest(x) {
    const away = (at) => Math.abs(this.x(this.points[at][0]) - x);
    let [low, high] = [0, this.points.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.x(this.points[middle][0]) < x) low = middle;
      else high = middle;
    }
    return away(low) <= away(high) ? low : high;
  }

  typed(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const from = this.cursor ?? this.nearest(this.x(this.moment));
    this.point(Math.max(0, Math.min(this.points.length - 1, from + step * (event.shiftKey ? 20 : 1))));
  }

  point(at) {
    this.cursor = at;
    const [event, allocated, reserved] = at == null ? [] : this.points[at];
    this.detail.textContent = at == null ? "" : `After event ${count(event)}: ${bytes(allocated)} allocated, ${bytes(reserved)} reserved.`;
    this.draw();
  }

  line(paint, y, name, dashed) {
    paint.setLineDash(dashed ? [4, 4] : []);
    paint.beginPath();
    paint.moveTo(EDGE.left, y);
    paint.lineTo(this.canvas.clientWidth - EDGE.right, y);
    paint.strokeStyle = color(name);
    paint.stroke();
    paint.setLineDash([]);
  }

  draw() {
    const paint = cleared(this.canvas);
    const bottom = this.y(0);
    paint.textAlign = "right";
    for (const tick of ticks(this.highest, 5, 1024)) {
      this.line(paint, this.y(tick), "line", false);
      paint.fillStyle = color("soft");
      paint.fillText(bytes(tick), EDGE.left - 6, this.y(tick) + 4);
    }
    const path = (index, close) => {
      paint.beginPath();
      if (close) paint.moveTo(this.x(this.points[0][0]), bottom);
      let last = null;
      for (const point of this.points) {
        if (last != null) paint.lineTo(this.x(point[0]), this.y(last));
        paint.lineTo(this.x(point[0]), this.y(point[index]));
        last = point[index];
      }
      paint.lineTo(this.x(this.events), this.y(last));
      if (close) paint.lineTo(this.x(this.events), bottom);
    };
    path(1, true);
    paint.fillStyle = color("activation");
    paint.fill();
    path(2, false);
    paint.strokeStyle = color("ink");
    paint.stroke();
    if (this.capacity) this.line(paint, this.y(this.capacity), "bad", true);
    for (const [event, name] of [[this.moment, "bad"], [this.cursor == null ? null : this.points[this.cursor][0], "accent"]]) {
      if (event == null) continue;
      paint.fillStyle = color(name);
      paint.fillRect(this.x(event) - 0.75, EDGE.top, 1.5, bottom - EDGE.top);
    }
    paint.fillStyle = color("soft");
    paint.textAlign = "left";
    paint.fillText("event 0", EDGE.left, this.canvas.clientHeight - 6);
    paint.textAlign = "right";
    paint.fillText(count(this.events), this.canvas.clientWidth - EDGE.right, this.canvas.clientHeight - 6);
  }
}
