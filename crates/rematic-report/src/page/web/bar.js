// What a step takes of a device at its peak, as one bar.

// What hardly changes comes first.
const ORDER = ["parameter", "optimizer", "buffer", "other", "gradient", "activation", "temp"];

// The parts of the bar: [name, bytes, colour, what it is].
const barParts = ({ categories, peak_bytes: peak, memory }) => {
  const size = (name) => categories.find(({ category }) => category === name)?.bytes ?? 0;
  const parts = ORDER.map((name) => [name, size(name), name, "tensors at the peak"]);
  if (memory) {
    const handed = Math.max(memory.allocated_bytes, peak);
    parts.push(["kernels", handed - peak, "kernels", "what kernels take for themselves, and rounding"],
      ["cached", Math.max(0, memory.reserved_bytes - handed), "cached", "reserved by PyTorch's allocator and not in use at the peak"],
      ["context", memory.context_bytes, "context", "the driver's context and libraries, beside PyTorch"]);
  }
  return parts.filter(([, value]) => value > 0);
};

// `limit` is the memory of the device, and `budget` what tensors may take, if that is what counts.
const memoryBar = (answer) => {
  const { memory, budget_bytes: budget, device } = answer;
  const parts = barParts(answer);
  const taken = parts.reduce((sum, [, value]) => sum + value, 0);
  const usable = memory?.usable_bytes ?? 0;
  const scale = Math.max(taken, usable, budget ?? 0, 1) * 1.001;
  const share = (value) => `${(value / scale) * 100}%`;
  const piece = ([name, value, kind, what]) => {
    const part = element("span", { class: kind === "cached" ? "piece hatched" : "piece", title: `${name}: ${bytes(value)} (${what})` });
    part.style.width = share(value);
    part.style.setProperty("--color", `var(--${kind})`);
    return part;
  };
  const free = usable - taken;
  const mark = (value, kind, text) => {
    const line = element("span", { class: `limit ${kind}`, title: text });
    line.style.left = share(value);
    return line;
  };
  const track = element("div", { class: "track" }, parts.map(piece),
    usable > 0 && mark(usable, "device", `${device}: ${bytes(usable)}`),
    budget != null && mark(budget, "budget", `budget for tensors: ${bytes(budget)}`));
  const item = (name, value, kind, what, look = "") => {
    const entry = element("li", { title: what, class: look }, `${name} `, element("data", { value }, bytes(value)));
    entry.style.setProperty("--color", `var(--${kind})`);
    return entry;
  };
  const legend = element("ul", { class: "legend" },
    parts.map(([name, value, kind, what]) => item(name, value, kind, what, kind === "cached" ? "hatched" : "")),
    memory && free >= 0 && item("free", free, "free", "what is left of the device"),
    memory && free < 0 && item("missing", -free, "bad", "what the device does not have", "missing"),
    usable > 0 && item("│ device", usable, "ink", `what PyTorch sees of ${device}`, "line"),
    budget != null && item("┊ budget", budget, "bad", "what tensors may take", "line red"));
  const words = parts.map(([name, value]) => `${name} ${bytes(value)}`).join(", ");
  return element("div", { class: "bar", role: "img", "aria-label": `In memory at the peak: ${words}${usable ? `; the device has ${bytes(usable)}` : ""}` }, track, legend);
};
