// Puts the page together.

const data = JSON.parse(byId("data").textContent);
const { story } = data;
const { moment, failure, fragmentation } = story;
const PARTS = 8;
const tint = (group) => color(`part-${(data.group_parts[group] ?? PARTS - 1) % PARTS}`);
const sized = (value) => element("data", { value }, bytes(value));

const saved = story.trials.find((trial) => trial.outcome === "saved");
const verdict = () => {
  if (failure) {
    return [element("strong", { class: "bad" }, "Out of memory"), ": ", sized(failure.wanted_bytes),
      ` were asked for by ${failure.line}, and the device had `, sized(failure.device_free_bytes), " left. ",
      saved ? `With ${saved.settings} the request would have been met.`
        : story.trials.length ? "None of the settings that were tried would have met the request." : "No other settings were tried."];
  }
  return [element("strong", null, moment.kind === "peak" ? "The peak" : "When the snapshot was taken"), ": ", sized(moment.allocated_bytes), " were allocated."];
};

const figures = () => {
  const figure = (name, value, note) => element("div", null, element("dt", null, name),
    element("dd", null, element("data", { value, id: `figure-${name.replaceAll(" ", "-")}` }, bytes(value)), note ? element("small", null, note) : null));
  const parts = [
    figure("allocated", moment.allocated_bytes, `${bytes(moment.requested_bytes)} requested`),
    figure("reserved", moment.reserved_bytes, failure ? `of ${bytes(failure.capacity_bytes)} that the process could have` : null),
    figure("not in use", fragmentation.free_bytes, `the largest piece has ${bytes(fragmentation.largest_free_bytes)}`),
    figure("highest reserved", story.reserved_peak_bytes, `${bytes(story.allocated_peak_bytes)} allocated at most`),
  ];
  return parts;
};

const OUTCOMES = {
  runs: "", saved: "would have met the request that failed",
  runs_out: "runs out at the same request", runs_out_before: "runs out before",
};

const describe = (segment, block) => {
  const whole = `${bytes(segment[0])} segment${segment[2] ? " (expandable)" : ""}, stream ${segment[1]}`;
  if (!block) return `${whole}: not in use here.`;
  const group = moment.groups[block[2]];
  return `${whole}: ${bytes(block[1])}, ${group.part.replaceAll("_", " ")}, ${group.line}${group.module ? `, in ${group.module}` : ""}.`;
};

byId("file").textContent = `${data.file}, GPU ${story.device}`;
byId("facts").textContent = [`${count(story.record.events)} events`, story.settings || "default settings"].join(" · ");
byId("verdict").append(...verdict());
byId("figures").append(...figures());
byId("legend").append(...moment.parts.map(({ bytes: size }, number) => {
  const item = element("li", null, `${data.parts[number]} ${bytes(size)}`);
  item.style.setProperty("--color", `var(--part-${number % PARTS})`);
  return item;
}));

const ROWS = 50;
const lines = table(`${count(Math.min(ROWS, moment.groups.length))} of ${count(moment.groups.length)} lines that asked for what was in memory`,
  [["bytes", "number"], ["blocks", "number"], ["part"], ["asked for by"], ["in the calls"]],
  moment.groups.slice(0, ROWS).map((group, number) => [[bytes(group.bytes), null, group.bytes], count(group.count),
    data.parts[data.group_parts[number]], group.user ? `${group.line} (from ${group.user})` : group.line, group.module]));
byId("lines").append(lines);
for (const [number, row] of [...lines.querySelectorAll("tbody tr")].entries()) {
  row.addEventListener("click", () => {
    const { stack } = moment.groups[number];
    byId("stack").hidden = !stack.length;
    byId("stack").textContent = stack.join("\n");
  });
}

byId("fragmentation").textContent = `${bytes(fragmentation.free_bytes)} of ${bytes(moment.reserved_bytes)} reserved were not in use, in ${count(fragmentation.pieces)} pieces.`;
byId("pinned").append(table("Segments that are partly empty, and what keeps them",
  [["free", "number"], ["of", "number"], ["blocks", "number"], ["the largest of them"]],
  fragmentation.pinned.map((segment) => [bytes(segment.free_bytes), bytes(segment.bytes), count(segment.live),
    segment.blocks.map((block) => `${bytes(block.bytes)} ${block.line}`).join("; ")])));
byId("trials").append(table("The recorded requests under other settings",
  [["PYTORCH_CUDA_ALLOC_CONF"], ["reserves at most", "number"], [""]],
  story.trials.map((trial) => [trial.settings, [bytes(trial.reserved_bytes), null, trial.reserved_bytes], OUTCOMES[trial.outcome]])));
byId("basis").append(...[...data.advice, `Made by Rematic ${data.version}.`].map((text) => element("li", null, text)));

byId("pinned-section").hidden = !fragmentation.pinned.length;
byId("trials-section").hidden = !story.trials.length;
byId("map-section").hidden = !data.map.length;
byId("memory").hidden = data.timeline.length < 2;
const charts = [];
if (data.timeline.length > 1) {
  charts.push(new TimeChart(byId("time"), byId("time-detail"), data.timeline, story.record.events, moment.event, failure?.capacity_bytes));
}
if (data.map.length) charts.push(new SegmentMap(byId("map"), byId("map-detail"), data.map, describe, tint));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  forgetColors();
  for (const chart of charts) chart.draw();
});
