// Why the step peaks where it does, and the cheapest ways down.

const RESIDENTS = 9;
const WAYS = 3;

const showPeak = (parent) => {
  const { peak_bytes: peak, at, categories, residents, remedies, together, world_size: devices } = data.explanation;
  const each = devices > 1 ? " on each device" : "";
  const operator = at.op ? ` The operator is ${short(at.op)}${at.module ? ` in ${at.module}` : ""}.` : "";
  const shares = categories.map(({ category, bytes: size }) => [category, bytes(size), percent(size / Math.max(peak, 1))]);
  const rows = residents.slice(0, RESIDENTS).map((group) =>
    [bytes(group.bytes), group.count > 1 ? `${count(group.count)}×` : "", group.category, group.made_by, group.module, group.held_by]);
  parent.append(
    element("p", null, element("strong", null, `Without a plan it is ${bytes(peak)}${each}`), `, ${at.words}.${operator}`),
    peak > 0 && element("div", { class: "beside" },
      table("By category", [["category"], ["bytes", "number"], ["share", "number"]], shares),
      table("Largest tensors at the peak", [["bytes", "number"], ["", "number"], ["category"], ["made by", "name"], ["in", "name"], ["held by", "name"]], rows)));
  if (!remedies.length) return;
  const cheapest = remedies.slice(0, WAYS);
  parent.append(element("h3", null, "Cheapest ways to reduce the peak"),
    element("ol", { class: "ways" }, cheapest.map(way)));
  if (together) {
    const all = cheapest.length === 2 ? "Both" : "All three";
    parent.append(element("p", { class: "note" },
      `${all} together: ${bytes(together.peak_bytes)}, ${longer(together.extra_ms)}, then the peak is ${together.at.words}. Each peak is a replay of the whole step.`));
  }
};

const way = ({ title, how, assumption, peak_bytes: peak, freed_bytes: freed, extra_ms: extra }) =>
  element("li", null, element("strong", null, title),
    element("p", null, element("data", { value: peak }, bytes(peak)), ` (${bytes(freed)} less), ${longer(extra)}`),
    // A command is written as it is typed.
    element("p", null, `${how.startsWith("rematic") ? how : how[0].toUpperCase() + how.slice(1)}.`), element("p", { class: "note" }, `${assumption}.`));

const longer = (extra) => {
  if (extra == null) return "time unknown";
  return extra <= 0 ? "no extra time" : `${millis(extra)} more (${percent(extra / Math.max(data.step_ms, 1e-12))})`;
};
