// Puts the page together.

const plain = recorded(data.plain);
const planned = data.planned ? recorded(data.planned) : null;
const own = data.chosen;
const highest = Math.max(plain.totals[plain.peak] ?? 0, own.budget_bytes <= data.baseline_peak_bytes * 1.3 ? own.budget_bytes : 0, 1) * 1.06;

const sized = (value) => element("data", { value }, bytes(value));

const verdict = () => {
  const share = percent(own.recompute_ms / Math.max(data.step_ms, 1e-12), 2);
  const budget = () => data.for_device ? `${data.device} (${bytes(data.device_bytes)})` : sized(own.budget_bytes);
  const fits = data.for_device ? data.fits : own.peak_bytes <= own.budget_bytes;
  if (!own.regions.length && fits) {
    return [element("strong", { class: "good" }, "Fits as it is"), ": the peak is ", sized(data.baseline_peak_bytes),
      ...(data.for_device ? [" on ", budget()] : [" of ", budget()]), "."];
  }
  const way = [sized(data.baseline_peak_bytes), " to ", sized(own.peak_bytes),
    `; recomputing takes ${millis(own.recompute_ms)} on top of ${millis(data.step_ms)} (${share})`];
  return fits
    ? [element("strong", { class: "good" }, "Fits with a plan"), " into ", budget(), ". The peak goes from ", ...way, `; ${own.quality}${data.for_device ? " with that peak" : ""}.`]
    : [element("strong", { class: "bad" }, "Does not fit"), " into ", budget(), ". ", ...(own.regions.length
      ? ["With the plan that goes lowest, the peak goes from ", ...way, "."]
      : ["Recomputation does not lower the peak, ", sized(own.peak_bytes), "."])];
};

// A step may be highest before its first operator.
const where = (steps, peak) =>
  steps.length && steps.totals[steps.peak] >= peak ? `after ${sentence(steps, steps.peak)}` : "when the step begins";

const figures = () => {
  const figure = (name, value, note, exact) => element("div", null, element("dt", null, name),
    element("dd", null, element("data", { value: exact, id: `figure-${name.replaceAll(" ", "-")}` }, value), note ? element("small", null, note) : null));
  const step = data.step_ms;
  const parts = [
    figure("peak as it is", bytes(data.baseline_peak_bytes), where(plain, data.baseline_peak_bytes), data.baseline_peak_bytes),
  ];
  if (planned) {
    parts.push(figure("peak with the plan", bytes(own.peak_bytes), where(planned, own.peak_bytes), own.peak_bytes),
      figure("extra time", millis(own.recompute_ms), `${percent(own.recompute_ms / Math.max(step, 1e-12), 2)} of the step`, own.recompute_ms));
  }
  const memory = data.memory;
  if (memory) {
    const taken = memory.reserved_bytes + memory.context_bytes;
    const left = memory.usable_bytes - taken;
    parts.push(figure("reserved", bytes(memory.reserved_bytes),
      `by PyTorch's allocator, of which ${bytes(memory.allocated_bytes)} are handed out at most`, memory.reserved_bytes),
    figure("on the device", bytes(taken), `with ${bytes(memory.context_bytes)} for the CUDA context and libraries, of ${bytes(memory.usable_bytes)}: `
      + (!data.fits ? `${bytes(Math.max(-left, 0))} too much`
        : memory.retries ? `just enough if PyTorch empties its cache, which takes time` : `${bytes(Math.max(left, 0))} to spare`), taken));
  }
  if (!data.for_device) parts.push(figure("budget", bytes(own.budget_bytes), `${data.device} has ${bytes(data.device_bytes)}`, own.budget_bytes));
  parts.push(
    figure("step", millis(step), PHASES.map((phase, at) => `${phase} ${millis(data.phase_ms[at])}`).join(", "), step));
  if (data.pace_words) {
    parts.push(figure(planned ? "step with the plan" : "pace", millis(data.planned_step_ms), data.pace_words, data.planned_step_ms));
  }
  return parts;
};

byId("model").textContent = data.model;
byId("facts").textContent = [data.setup, ...data.facts, ...(modules.length ? [`${data.parameters} parameters`] : []), `${count(ops.length)} operators`, `${count(data.called)} modules`].join(" · ");
byId("verdict").append(...verdict());
byId("figures").append(...figures());
showPeak(byId("peak"));
byId("legend").append(...[...STACK].reverse().map((category) => {
  const item = element("li", null, CATEGORIES[category]);
  item.style.setProperty("--color", `var(--${CATEGORIES[category]})`);
  return item;
}));
byId("basis").append(...[...data.assumptions, `Made by Rematic ${data.version}.`].map((text) => element("li", null, text)));

// A step in which nothing runs has no charts.
if (!plain.length) for (const id of ["memory", "there"]) byId(id).hidden = true;
if (!modules.length) byId("modules-section").hidden = true;
const alive = new Alive(byId("alive"));
const tree = new ModuleTree(byId("modules"), byId("operators"), plain);
const point = (chart, at) => alive.show(chart.caption.textContent, chart.steps, at);
const before = new MemoryChart(byId("charts"), "before", point);
const after = new MemoryChart(byId("charts"), "after", point);
if (plain.length) before.set("As it is", plain, highest, own.budget_bytes);

const outlines = new Map();
const stepsOf = (plan) => {
  if (!outlines.has(plan)) outlines.set(plan, outlined(plan));
  return outlines.get(plan);
};
new BudgetCurve(byId("curve"), (plan, isOwn) => {
  const steps = isOwn ? planned ?? plain : stepsOf(plan);
  const caption = plan.peak_bytes > plan.budget_bytes ? "With the plan that goes lowest" : `With the plan for ${bytes(plan.budget_bytes)}`;
  showPlan(byId("plan"), plan);
  tree.set(plan);
  // Without a plan, one chart says it all.
  after.hidden = !plan.regions.length;
  if (after.hidden) {
    if (plain.length) point(before, plain.peak);
    return;
  }
  after.set(caption, steps, highest, plan.budget_bytes);
  point(after, steps.peak);
});

const repaint = () => {
  forgetColors();
  before.redraw();
  after.redraw();
  tree.draw();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
matchMedia("print").addEventListener("change", repaint);
