// Asks the planner behind the page, and shows what it answers.

const STAGES = ["step", "draft", "plan", "curve"];
// Somebody who types has not asked yet.
const TYPING_MS = 60;
const tab = String(Math.floor(Math.random() * 1e15));
let number = 0;
let last = null;
let curve = null;

const request = async (stage, mine, controls) => {
  const answer = await fetch("answer", {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ stage, tab, number: mine, controls }),
  });
  return answer.json();
};

// The newest question wins: what comes for an older one is left.
const ask = async () => {
  const mine = ++number;
  const controls = asked();
  history.replaceState(null, "", `#${new URLSearchParams(controls)}`);
  document.body.classList.add("asking");
  let is = null;
  for (const stage of STAGES) {
    if (is?.is_final && (stage === "draft" || stage === "plan")) continue;
    let answer;
    try {
      answer = await request(stage, mine, controls);
    } catch {
      if (mine === number) refuse("The planner behind this page has stopped. Start `rematic explore` again, and open the address that it prints.");
      return;
    }
    if (mine !== number) return;
    if ("error" in answer) {
      // Another page of the same planner took its place.
      if (answer.error == null) return setTimeout(() => mine === number && ask(), TYPING_MS);
      if (stage === "curve") showCurve(null, answer.error);
      else return refuse(answer.error);
    } else if (stage === "curve") {
      showCurve(answer);
    } else {
      is = answer;
      show(answer);
    }
    document.body.dataset.shown = `${mine} ${stage}`;
  }
  document.body.classList.remove("asking");
  document.body.dataset.shown = `${mine} done`;
};

const refuse = (words) => {
  byId("short").replaceChildren(element("strong", { class: "bad" }, "No answer: "), words);
  byId("refusal").textContent = words;
  byId("refusal").hidden = false;
  byId("answer").classList.add("old");
  document.body.classList.remove("asking");
  document.body.dataset.shown = `${number} refused`;
};

const sized = (value) => element("strong", null, bytes(value));

const where = ({ device, gpus }) => (gpus > 1 ? `each of ${count(gpus)} × ${device}` : device);

// A budget that the device does not have is worth a word.
const beyond = (answer) => (answer.budget_bytes != null && answer.fits_device === false
  ? ` ${answer.device} itself does not have that: ${bytes(answer.memory.reserved_bytes + answer.memory.context_bytes)} of ${bytes(answer.memory.usable_bytes)}.` : "");

const verdict = (answer) => {
  const { outcome, budget_bytes: budget, memory, peak_bytes: peak, baseline_peak_bytes: baseline, recompute_ms: extra, step_ms: step } = answer;
  const target = budget == null ? where(answer) : `${bytes(budget)} on ${where(answer)}`;
  const taken = memory ? memory.reserved_bytes + memory.context_bytes : peak;
  const of = budget == null && memory ? [sized(taken), ` of ${bytes(memory.usable_bytes)}`] : ["a peak of ", sized(peak)];
  const more = memory ? Math.max(0, taken - memory.usable_bytes) : 0;
  const share = `+${percent(extra / Math.max(step, 1e-12), 2)}`;
  switch (outcome) {
    case "fits":
      return [element("strong", { class: "good" }, "Fits as it is"), ` ${budget == null ? "on" : "within"} ${target}: `, ...of, ".", beyond(answer)];
    case "planned":
      return [element("strong", { class: "good" }, "Fits with a plan"), ` ${budget == null ? "on" : "within"} ${target}: `, ...of,
        ", at ", element("strong", null, share), ` of time. The peak goes from ${bytes(baseline)} to ${bytes(peak)}.`, beyond(answer),
        answer.is_final ? (answer.quality ? ` ${capital(answer.quality)}.` : "") : " Looking for a better plan …"];
    case "infeasible":
      return [element("strong", { class: "bad" }, answer.is_final ? "Does not fit" : "Does not fit so far"), ` ${budget == null ? "on" : "within"} ${target}. With the plan that goes lowest, it takes `, ...of,
        more ? `: ${bytes(more)} too much.` : ".", answer.is_final ? " Try a smaller batch, more GPUs, another optimizer or precision, or a larger device." : " Looking for a better plan …"];
    default:
      return [element("strong", { class: "bad" }, "Does not fit as it is"), ` ${budget == null ? "on" : "within"} ${target}: `, ...of, budget == null && more ? `, ${bytes(more)} too much` : "", ". Looking for a plan …"];
  }
};

// The same where the controls hide it.
const brief = (answer) => {
  const { memory, peak_bytes: peak, outcome } = answer;
  const words = { fits: "Fits as it is", planned: "Fits with a plan" }[outcome] ?? "Does not fit";
  const of = memory ? `${bytes(memory.reserved_bytes + memory.context_bytes)} of ${bytes(memory.usable_bytes)}` : bytes(peak);
  return [element("strong", { class: words === "Does not fit" ? "bad" : "good" }, words), `: ${of}${answer.is_final ? "" : " …"}`];
};

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const show = (answer) => {
  last = answer;
  byId("refusal").hidden = true;
  byId("answer").classList.remove("old");
  byId("result").hidden = false;
  byId("verdict").replaceChildren(...verdict(answer).filter(Boolean));
  byId("short").replaceChildren(...brief(answer));
  byId("bar").replaceChildren(memoryBar(answer));
  byId("figures").replaceChildren(...figures(answer));
  byId("notes").textContent = [[answer.setup, ...answer.facts].join(" · "), answer.not_counted].filter(Boolean).join(". ");
  copiable(byId("command"), answer.command);
  showDefaults(answer.options);
  byId("plan-section").hidden = !answer.kinds.length;
  if (answer.kinds.length) {
    const rows = answer.kinds.map((kind) => [kind.name, kind.count > 1 ? `${count(kind.count)}×` : "", kind.frees, kind.discards, kind.recomputes, kind.saves]);
    byId("plan").replaceChildren(table(`What is dropped and recomputed: ${answer.quality}`,
      [["checkpoint, each", "name"], ["", "number"], ["frees", "number"], ["discards", "number"], ["recomputes", "number"], ["saves", "wide"]], rows));
  }
  drawCurve();
};

// What is taken where nothing is chosen.
const showDefaults = (options) => {
  for (const [name, input] of fields) {
    const own = options[name];
    if (own == null || input.value !== "") continue;
    input.dataset.own = own;
    if (input.tagName === "SELECT") input.options[0].textContent = `${own} (default)`;
    else input.placeholder = own;
  }
};

const figures = (answer) => {
  const figure = (name, value, note, exact) => element("div", null, element("dt", null, name),
    element("dd", null, element("data", { value: exact, id: `figure-${name.replaceAll(" ", "-")}` }, value), note ? element("small", null, note) : null));
  const { planned_step_ms: step, recompute_ms: extra, tokens_per_second: tokens, mfu } = answer;
  return [
    figure("peak", bytes(answer.peak_bytes), answer.at.replace(/^, /, ""), answer.peak_bytes),
    figure("step time", millis(step), extra > 0 ? `of which ${millis(extra)} is recomputation` : "estimated from the data sheet", step),
    tokens != null && figure("tokens per second", count(Math.round(tokens)), answer.gpus > 1 ? `${count(Math.round(answer.tokens_per_second_per_gpu))} on each GPU` : null, tokens),
    mfu != null && figure("MFU", percent(mfu), answer.pace_share == null ? null : `published runs reach ${percent(answer.pace_share, 0)} of this pace`, mfu),
    figure("model", answer.model.split("/").slice(-2).join("/"), `${answer.parameters} parameters${answer.gpus > 1 ? " on this GPU" : ""}`, answer.model),
  ].filter(Boolean);
};

// The picture waits for its curve; what stood there before is not for this step.
const showCurve = (answer, why) => {
  curve = answer && { ...answer, points: [...answer.points].reverse() };
  const parent = byId("curve");
  if (!curve) return parent.replaceChildren(element("p", { class: "note" }, why));
  const { points } = curve;
  if (points[0].budget_bytes === points[points.length - 1].budget_bytes) {
    return parent.replaceChildren(element("p", { class: "note" }, `Recomputation does not lower the peak: it is ${bytes(points[0].peak_bytes)} with every plan.`));
  }
  const svg = drawing("svg", { role: "img", "aria-label": "Extra time against budget" });
  svg.addEventListener("click", (event) => {
    const point = curve.points[nearestPoint(curve.points, curve.place, event.clientX - svg.getBoundingClientRect().left)];
    fields.get("budget").value = `${(Math.ceil(point.budget_bytes / 1024 ** 3 * 100) / 100).toFixed(2)}GiB`;
    ask();
  });
  new ResizeObserver(() => drawCurve()).observe(svg);
  curve.svg = svg;
  parent.replaceChildren(svg, budgetLegend([
    ["point", "a plan"],
    points.some((point) => point.fits === false) && ["unfit", "a plan that the device has no room for"],
    ["bound", "lower bound"], ["device", "the device's memory for tensors"],
    last?.budget_bytes != null && ["budget", "the budget"], ["here", "this step"]]));
  drawCurve();
};

const drawCurve = () => {
  if (!curve?.svg || !last) return;
  const marks = [];
  if (curve.room) marks.push([curve.room[0], `${curve.room[1]}: ${bytes(curve.room[0])}`, "device"]);
  if (last.budget_bytes != null) marks.push([last.budget_bytes, `budget ${bytes(last.budget_bytes)}`, "budget"]);
  curve.place = drawBudgets(curve.svg, { points: curve.points, step: curve.step_ms, marks, here: { bytes: last.peak_bytes, ms: last.recompute_ms } });
};

let waiting = null;
const changed = (event) => {
  disable();
  clearTimeout(waiting);
  if (event?.target?.tagName === "INPUT") waiting = setTimeout(ask, TYPING_MS);
  else ask();
};

makeControls(byId("controls"), changed);
byId("controls").append(element("button", { id: "short", type: "button", onclick: () => byId("answer").scrollIntoView() }));
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  const input = fields.get(name);
  if (input && name !== "fsdp") input.value = value;
  if (input && !input.value && START[name]) input.value = START[name];
}
changed();
