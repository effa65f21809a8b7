// The curve of budget against extra time, and the plan of the budget that is chosen on it.

const SPACE = { left: 74, right: 16, top: 28, bottom: 48, height: 260 };

class BudgetCurve {
  constructor(parent, onPlan) {
    this.parent = parent;
    this.onPlan = onPlan;
    this.points = [...data.curve].reverse();
    this.svg = drawing("svg", { role: "img", "aria-label": "Extra time against budget" });
    const last = this.points.length - 1;
    this.slider = element("input", { type: "range", min: 0, max: last, step: 1, value: this.nearest(), "aria-label": "Budget", id: "slider" });
    this.output = element("output", { for: "slider" });
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    this.back = element("button", { type: "button", onclick: () => this.choose(null) }, `Back to ${bytes(data.chosen.budget_bytes)}`);
    this.svg.addEventListener("click", (event) => this.clicked(event));
    parent.append(this.svg, element("div", { class: "slider" },
      element("label", { for: "slider" }, "Budget"), this.slider, this.output, this.back));
    if (this.points[0].budget_bytes === this.points[last].budget_bytes) {
      const same = `Recomputation does not lower the peak: it is ${bytes(this.points[0].peak_bytes)} with every plan.`;
      parent.replaceChildren(element("p", null, same));
    }
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.choose(null);
  }

  // The point whose plan is nearest to the page's own.
  nearest() {
    const distance = (point) => Math.abs(point.budget_bytes - data.chosen.budget_bytes);
    return this.points.reduce((best, point, index) => (distance(point) < distance(this.points[best]) ? index : best), 0);
  }

  // The nearest point of the curve.
  clicked(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const distance = (point) => Math.abs(this.place(point.budget_bytes) - x);
    this.choose(this.points.reduce((best, point, index) => (distance(point) < distance(this.points[best]) ? index : best), 0));
  }

  // A point of the curve, or null for the page's own plan.
  choose(index) {
    this.index = index;
    const plan = index == null ? data.chosen : this.points[index];
    if (index == null) this.slider.value = this.nearest();
    this.output.textContent =
      `${bytes(plan.budget_bytes)}: peak ${bytes(plan.peak_bytes)}, ${millis(plan.recompute_ms)} more (${percent(plan.recompute_ms / Math.max(data.step_ms, 1e-12), 2)})`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
    this.back.hidden = index == null;
    this.draw();
    this.onPlan(plan, index == null);
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    const { left, right, top, bottom, height } = SPACE;
    const least = this.points[0].budget_bytes;
    const largest = this.points[this.points.length - 1].budget_bytes;
    // A budget far from all that can be reached would leave the curve no room.
    const room = Math.max(largest - least, 1) * 0.12;
    const near = data.chosen.budget_bytes >= least - room && data.chosen.budget_bytes <= largest + room;
    const [low, high] = near
      ? [Math.min(least, data.chosen.budget_bytes), Math.max(largest, data.chosen.budget_bytes)]
      : [least, largest];
    const times = [...this.points, data.chosen].map((plan) => plan.recompute_ms);
    const most = Math.max(...times, 1e-9);
    const within = (value) => Math.max(low, Math.min(high, value));
    const x = (value) => left + ((within(value) - low) / Math.max(high - low, 1)) * (width - left - right);
    const y = (value) => top + (1 - value / most) * (height - top - bottom);
    const path = (of) => this.points.map((point, at) => `${at ? "L" : "M"}${x(point.budget_bytes).toFixed(1)} ${y(of(point)).toFixed(1)}`).join("");
    const parts = [];
    for (const value of ticks(most, 4)) {
      parts.push(drawing("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        drawing("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value ? `+${millis(value)}` : "0"));
    }
    for (const value of ticks(high, (width < 500 ? 4 : 8) * (high / Math.max(high - low, 1)), 1024).filter((tick) => tick >= low)) {
      parts.push(drawing("text", { x: x(value), y: height - bottom + 18, "text-anchor": "middle" }, bytes(value).replace(/\.00 /, " ")));
    }
    parts.push(drawing("text", { class: "axis", x: 0, y: 12 }, "extra time"),
      drawing("text", { class: "axis", x: width - right, y: height - 6, "text-anchor": "end" }, "budget"),
      drawing("text", { x: left, y: height - 6 }, "dashed: no plan takes less"));
    const bound = path((point) => point.lower_bound_ms);
    parts.push(drawing("path", { class: "bound", d: bound }, drawing("title", null, "No plan takes less than this")),
      drawing("path", { class: "line", d: path((point) => point.recompute_ms) }));
    const { budget_bytes: budget } = data.chosen;
    const outside = budget < low ? "← " : budget > high ? "→ " : "";
    const at = x(budget);
    const anchor = at > width - 140 ? "end" : at < left + 70 ? "start" : "middle";
    parts.push(drawing("text", { class: "mark", x: at, y: top - 4, "text-anchor": anchor }, `${outside}budget ${bytes(budget)}`));
    if (!outside) parts.push(drawing("line", { class: "budget", x1: at, x2: at, y1: top, y2: height - bottom }));
    for (const [index, point] of this.points.entries()) {
      const title = `${bytes(point.budget_bytes)}: ${millis(point.recompute_ms)} more`;
      parts.push(drawing("circle", { cx: x(point.budget_bytes), cy: y(point.recompute_ms), r: 3.5 }, drawing("title", null, title)));
    }
    const here = this.index == null ? data.chosen : this.points[this.index];
    // A plan stands where its peak is; a budget that it does not meet is no place for it.
    const place = here.peak_bytes > here.budget_bytes || here.budget_bytes > high ? here.peak_bytes : here.budget_bytes;
    parts.push(drawing("circle", { class: "here", cx: x(place), cy: y(here.recompute_ms), r: 6 }));
    this.place = x;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
  }
}

// The regions of a plan.
const showPlan = (parent, plan) => {
  const rows = plan.kinds.map((kind) =>
    [kind.name, kind.count > 1 ? `${count(kind.count)}×` : "", kind.frees, kind.discards, kind.recomputes, kind.saves]);
  const columns = [["checkpoint, each", "name"], ["", "number"], ["frees", "number"], ["discards", "number"], ["recomputes", "number"], ["saves", "wide"]];
  const title = `The plan for ${bytes(plan.budget_bytes)}: ${plan.quality}`;
  parent.replaceChildren(rows.length
    ? table(title, columns, rows)
    : element("p", null, plan.peak_bytes <= plan.budget_bytes
      ? `With ${bytes(plan.budget_bytes)} the step fits as it is: nothing is dropped.`
      : "Recomputation does not lower the peak: nothing is dropped."));
};
