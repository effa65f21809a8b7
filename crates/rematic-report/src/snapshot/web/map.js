// The segments, one in a row, with the blocks in them.

class SegmentMap {
  constructor(canvas, detail, segments, describe, tint) {
    Object.assign(this, { canvas, detail, segments, describe, tint, chosen: null });
    this.widest = Math.max(1, ...segments.map((segment) => segment[0]));
    this.row = Math.max(3, Math.min(18, Math.floor(3000 / Math.max(1, segments.length))));
    canvas.addEventListener("pointermove", (event) => this.choose(this.at(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", () => this.choose(null));
    canvas.addEventListener("keydown", (event) => this.typed(event));
    canvas.setAttribute("aria-label", `${count(segments.length)} segments, the largest of ${bytes(this.widest)}`);
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  get scale() {
    return this.canvas.clientWidth / this.widest;
  }

  at(x, y) {
    const row = Math.floor(y / this.row);
    const segment = this.segments[row];
    if (!segment) return null;
    const offset = x / this.scale;
    if (offset > segment[0]) return null;
    const block = segment[3].findIndex(([start, size]) => offset >= start && offset < start + size);
    return [row, block];
  }

  typed(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, block] = this.chosen ?? [0, -1];
    const next = Math.max(0, Math.min(this.segments.length - 1, row + step[0]));
    const last = (this.segments[next]?.[3].length ?? 0) - 1;
    this.choose([next, step[0] ? Math.min(0, last) : Math.max(0, Math.min(last, block + step[1]))]);
  }

  choose(place) {
    this.chosen = place;
    this.detail.textContent = place ? this.describe(this.segments[place[0]], this.segments[place[0]][3][place[1]]) : "";
    this.draw();
  }

  draw() {
    const paint = cleared(this.canvas, this.row * this.segments.length);
    const gap = this.row > 6 ? 2 : this.row > 3 ? 1 : 0;
    this.segments.forEach(([size, , , blocks], row) => {
      const top = row * this.row;
      paint.fillStyle = color("line");
      paint.fillRect(0, top, Math.max(1, size * this.scale), this.row - gap);
      blocks.forEach(([start, length, group], number) => {
        const chosen = this.chosen && this.chosen[0] === row && this.chosen[1] === number;
        paint.fillStyle = chosen ? color("ink") : this.tint(group);
        const width = length * this.scale;
        paint.fillRect(start * this.scale, top, Math.max(0.5, width - (width > 3 ? 0.7 : 0)), this.row - gap);
      });
    });
  }
}
