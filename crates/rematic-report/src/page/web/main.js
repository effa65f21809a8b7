// Puts the page together.

const plain = recorded(data.plain);
const planned = data.planned ? recorded(data.planned) : null;
const own = data.chosen;
const highest = Math.max(plain.totals[plain.peak] ?? 0, own.budget_bytes <= data.baseline_peak_bytes * 1.3 ? own.budget_bytes : 0, 1) * 1.06;

const sized = (value) => element("data", { value }, bytes(value));
const { world_size: gpus } = data.frame;
const onDevice = gpus > 1 ? `each of ${count(gpus)} × ${data.device}` : data.device;
const fits = data.for_device ? data.fits : own.peak_bytes <= own.budget_bytes;
const slower = (ms) => `+${percent(ms / Math.max(data.step_ms, 1e-12), 2)}`;

// What has to hold it, as the end of a sentence.
const into = () => (data.for_device ? [` on ${onDevice} (${bytes(data.device_bytes)})`] : [" within ", sized(own.budget_bytes), ` on ${onDevice}`]);

// What the plan moves to the host.
const offloaded = () => (own.offload
  ? ` and of waiting for copies (${millis(own.offload.stall_ms)}): ${bytes(own.offload.bytes)} go to the host and come back at ${own.offload.gb_per_s.toFixed(1)} GB/s, in ${bytes(own.offload.host_bytes)} of its pinned memory`
  : "");

const verdict = () => {
  if (!own.regions.length && fits) {
    return [element("strong", { class: "good" }, "Fits as it is"), ...into(), ": the peak is ", sized(data.baseline_peak_bytes), "."];
  }
  const way = [sized(data.baseline_peak_bytes), " to ", sized(own.peak_bytes)];
  const time = `${millis(own.extra_ms)} on top of ${millis(data.step_ms)} (${slower(own.extra_ms)})`;
  return fits
    ? [element("strong", { class: "good" }, "Fits with a plan"), ...into(), ". The peak goes from ", ...way, ` for ${time} of recomputation${offloaded()}; ${own.quality}${data.for_device && own.quality.endsWith("known") ? "" : data.for_device ? " with that peak" : ""}.`]
    : [element("strong", { class: "bad" }, "Does not fit"), ...into(), ". ", ...(own.regions.length
      ? ["With the plan that goes lowest, the peak goes from ", ...way, ` for ${time}.`]
      : ["Recomputation does not lower the peak, ", sized(own.peak_bytes), "."])];
};

// Another way, or several together, that are enough and cost less than the plan, or are enough where no plan is; on the same devices,
// and computing the same up to rounding.
const cheaper = () => {
  if (!own.regions.length && fits) return null;
  const { remedies, pairs, together } = data.explanation;
  const titles = new Map(remedies.map(({ kind, title }) => [kind, `${title.charAt(0).toLowerCase()}${title.slice(1)}`]));
  const joined = (several) => ({ ...several, title: several.remedies.map((kind) => titles.get(kind)).join(" + "), assumption: "Each peak is a replay of the whole step" });
  const combined = [...pairs, together].filter((several) => several?.remedies.every((kind) => titles.has(kind))).map(joined);
  const isLike = ({ kind, numerics }) => kind !== "checkpointing" && kind !== "sharding" && numerics !== "approximate";
  const single = remedies.filter(isLike).map((remedy) => ({ ...remedy, title: titles.get(remedy.kind) }));
  const enough = [...single, ...combined].filter(({ peak_bytes: peak, extra_ms: extra }) =>
    peak <= own.budget_bytes && extra != null && (!fits || extra < own.extra_ms));
  return enough.sort((a, b) => a.extra_ms - b.extra_ms)[0] ?? null;
};

// A step may be highest before its first operator.
const where = (steps, peak) =>
  steps.length && steps.totals[steps.peak] >= peak ? `after ${sentence(steps, steps.peak)}` : "when the step begins";

const atPeak = (steps) => CATEGORIES.map((category, index) => ({ category, bytes: steps.categories[index][steps.peak] ?? 0 }));

const figures = () => {
  const figure = (name, value, note, exact) => element("div", null, element("dt", null, name),
    element("dd", null, element("data", { value: exact, id: `figure-${name.replaceAll(" ", "-")}` }, value), note ? element("small", null, note) : null));
  const step = data.step_ms;
  const parts = [
    figure("peak as it is", bytes(data.baseline_peak_bytes), where(plain, data.baseline_peak_bytes), data.baseline_peak_bytes),
  ];
  if (planned) {
    parts.push(figure("peak with the plan", bytes(own.peak_bytes), where(planned, own.peak_bytes), own.peak_bytes),
      figure("extra time", millis(own.extra_ms), `${percent(own.extra_ms / Math.max(step, 1e-12), 2)} of the step`, own.extra_ms));
  }
  const memory = data.memory;
  if (memory) {
    const taken = memory.reserved_bytes + memory.context_bytes;
    const left = memory.usable_bytes - taken;
    parts.push(figure("reserved", bytes(memory.reserved_bytes),
      `by PyTorch's allocator, of which ${bytes(memory.allocated_bytes)} are handed out at most`, memory.reserved_bytes),
    figure("on the device", bytes(taken), `with ${bytes(memory.context_bytes)} for the driver's context and libraries, of ${bytes(memory.usable_bytes)}: `
      + (!data.fits ? `${bytes(Math.max(-left, 0))} too much`
        : memory.retries ? `just enough if PyTorch empties its cache, which takes time` : `${bytes(Math.max(left, 0))} to spare`), taken));
  }
  if (!data.for_device) parts.push(figure("budget", bytes(own.budget_bytes), `${data.device} has ${bytes(data.device_bytes)}`, own.budget_bytes));
  parts.push(
    figure("step", millis(step), PHASES.map((phase, at) => `${phase} ${millis(data.phase_ms[at])}`).join(", "), step));
  if (data.pace_words) {
    parts.push(figure(planned ? "step with the plan" : "pace", millis(data.planned_step_ms), data.pace_words.replaceAll("\u00a0", " "), data.planned_step_ms));
  }
  return parts;
};

byId("model").textContent = data.model;
byId("facts").textContent = [data.setup, ...data.facts, ...(modules.length ? [`${data.parameters} parameters`] : []), `${count(ops.length)} operators`, `${count(data.called)} modules`].join(" · ");
byId("verdict").append(...verdict());
const other = cheaper();
if (other) {
  const plan = fits ? ` The plan takes ${slower(own.extra_ms)}.` : "";
  byId("cheaper").hidden = false;
  byId("cheaper").append(element("strong", null, fits ? "Cheaper: " : "What would fit: "), `${other.title}: `,
    sized(other.peak_bytes), ` at ${slower(other.extra_ms)}.${plan} `, element("small", null, `${other.assumption}.`));
}
byId("bar").append(memoryBar({ categories: atPeak(planned ?? plain), peak_bytes: own.peak_bytes, memory: data.memory,
  budget_bytes: data.for_device ? null : own.budget_bytes, device: data.device }));
byId("figures").append(...figures());
showPeak(byId("peak"));
const mark = (kind, text) => element("li", { class: `key ${kind}` }, text);
byId("legend").append(...[...STACK].reverse().filter((category) => plain.categories[category].some((value) => value > 0)).map((category) => {
  const item = element("li", null, CATEGORIES[category]);
  item.style.setProperty("--color", `var(--${CATEGORIES[category]})`);
  return item;
}), mark("budget-line", "budget"), mark("peak", "peak"), mark("phases", "phase ends"), mark("again", "operators that run again"), mark("behind", "the step as it is, behind"));
byId("basis").append(...[...data.assumptions, `Made by Rematic ${data.version}.`].map((text) => element("li", null, text)));

// A step in which nothing runs has no charts.
if (!plain.length) for (const id of ["memory", "there"]) byId(id).hidden = true;
if (!modules.length) byId("modules-section").hidden = true;
const alive = new Alive(byId("alive"));
const tree = new ModuleTree(byId("modules"), byId("operators"), plain);
const axis = new Axis(plain);
const readout = new Readout(byId("readout"), axis);
// A place that is kept stays; only what is said at the pointer follows it.
const pointed = (chart, at, pointer, isKept) => {
  if (at != null && !isKept) alive.show(chart.caption.textContent, chart.steps, at);
  readout.show(chart, at, pointer);
};
const before = new MemoryChart(byId("charts"), "before", axis, pointed);
const after = new MemoryChart(byId("charts"), "after", axis, pointed);
const tool = (label, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, label);
const measured = choice("Axis", [["operators", "operators"], ["time", "time"]], axis.mode, (mode) => {
  axis.set({ mode });
  axis.redraw();
});
byId("tools").append(measured,
  tool("+", "Zoom in", () => axis.zoom(0.5)), tool("−", "Zoom out", () => axis.zoom(2)),
  tool("All", "Show the whole step", () => axis.show(0, axis.length)),
  tool("Peak", "Go to the peak", () => (after.hidden ? before : after).goToPeak()));
if (plain.length) before.set("As it is", plain, highest, own.budget_bytes, null);

const outlines = new Map();
const stepsOf = (plan) => {
  if (!outlines.has(plan)) outlines.set(plan, outlined(plan));
  return outlines.get(plan);
};
new BudgetCurve(byId("curve"), (plan, isOwn) => {
  const steps = isOwn ? planned ?? plain : stepsOf(plan);
  const caption = plan.peak_bytes > plan.budget_bytes ? "With the plan that goes lowest" : `With the plan for ${bytes(plan.budget_bytes)}`;
  showPlan(byId("plan"), plan);
  showCopies(byId("copies"), plan, isOwn);
  tree.set(plan);
  // Without a plan, one chart says it all.
  after.hidden = !plan.regions.length;
  document.body.classList.toggle("unplanned", after.hidden);
  axis.set({ planned: after.hidden ? null : steps });
  if (plain.length) before.redraw();
  if (after.hidden) {
    after.steps = null;
    if (plain.length) pointed(before, plain.peak);
    return;
  }
  after.set(caption, steps, highest, plan.budget_bytes, plain);
  pointed(after, steps.peak);
});

const repaint = () => {
  forgetColors();
  before.redraw();
  after.redraw();
  tree.draw();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
matchMedia("print").addEventListener("change", repaint);
