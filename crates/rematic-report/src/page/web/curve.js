// The curve of budget against extra time, and the plan of the budget that is chosen on it.

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
    this.svg.addEventListener("click", (event) =>
      this.place && this.choose(nearestPoint(this.points, this.place, event.clientX - this.svg.getBoundingClientRect().left)));
    const keys = [["point", "a plan"], ["bound", "lower bound"],
      data.room_bytes != null && ["device", "what the device has for tensors"], ["budget", "the budget of this page"], ["here", "the plan that is shown"]];
    parent.append(this.svg, budgetLegend(keys), element("div", { class: "slider" },
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
    return nearestPoint(this.points, (budget) => budget, data.chosen.budget_bytes);
  }

  // A point of the curve, or null for the page's own plan.
  choose(index) {
    this.index = index;
    const plan = index == null ? data.chosen : this.points[index];
    if (index == null) this.slider.value = this.nearest();
    else this.slider.value = index;
    this.output.textContent =
      `${bytes(plan.budget_bytes)}: peak ${bytes(plan.peak_bytes)}, ${millis(plan.extra_ms)} more (${percent(plan.extra_ms / Math.max(data.step_ms, 1e-12), 2)})`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
    this.back.hidden = index == null;
    this.draw();
    this.onPlan(plan, index == null);
  }

  draw() {
    const { budget_bytes: budget } = data.chosen;
    const marks = [[budget, `budget ${bytes(budget)}`, "budget"]];
    if (data.room_bytes != null) marks.unshift([data.room_bytes, `${data.frame.device}: ${bytes(data.room_bytes)}`, "device"]);
    const here = this.index == null ? data.chosen : this.points[this.index];
    const largest = this.points[this.points.length - 1].budget_bytes;
    // A plan stands where its peak is; a budget that it does not meet is no place for it.
    const place = here.peak_bytes > here.budget_bytes || here.budget_bytes > largest ? here.peak_bytes : here.budget_bytes;
    this.place = drawBudgets(this.svg, { points: this.points, step: data.step_ms, marks, here: { bytes: place, ms: here.extra_ms } });
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
