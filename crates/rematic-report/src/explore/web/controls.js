// The controls: what is asked.

const choices = JSON.parse(byId("data").textContent);
const named = new Map(choices.named);
const PARALLEL = "Parallel layout";

// [name, label, kind, group, help]; a count can be halved and doubled.
const CONTROLS = [
  ["model", "Model", "choice", "Step", "A built-in model, or the source that the command was given."],
  ["batch", "Batch per GPU", "count", "Step", "Sequences in the batch of each GPU."],
  ["seq", "Sequence", "count", "Step", "Positions in a sequence."],
  ["precision", "Precision", "choice", "Step", "The types of parameters, activations and optimizer state."],
  ["optimizer", "Optimizer", "choice", "Step", "What is kept for every parameter, and what a step takes for a moment."],
  ["device", "Device", "choice", "Hardware", "The GPU."],
  ["gpus", "GPUs", "count", "Hardware", "How many GPUs train together."],
  ["budget", "Budget for tensors", "text", "Hardware", "Such as 38GiB. Empty: what fits the device."],
  ["tp", "Tensor parallel", "count", PARALLEL, "GPUs that share each layer."],
  ["replicate", "Copies (HSDP)", "count", PARALLEL, "Groups of GPUs, each with a copy of the model."],
  ["fsdp", "FSDP shards", "derived", PARALLEL, "GPUs that share a copy: what tensor parallelism and copies leave."],
  ["reshard", "Reshard", "choice", PARALLEL, "Whether a layer's weights go after its forward, and are gathered again for its backward."],
];
const START = { gpus: "1", tp: "1", replicate: "1", model: choices.models[0].name, device: choices.device };

const fields = new Map();

const options = (name) => {
  const own = { model: choices.models, device: choices.devices }[name];
  if (own) return own.map((one) => [one.name, name === "device" ? `${one.name} (${one.help.replace(/^(NVIDIA|AMD) /, "")})` : one.name, one.help]);
  return [["", "default", "What the command takes where nothing is said."], ...(named.get(name) ?? []).map((one) => [one.name, one.name, one.help])];
};

const field = ([name, label, kind, , help], changed) => {
  const id = `control-${name}`;
  const common = { id, name, "aria-describedby": `why-${name}`, title: help };
  let input;
  const extra = [];
  if (kind === "choice") {
    input = element("select", common, options(name).map(([value, text, what]) => element("option", { value, title: what }, text)));
  } else if (kind === "derived") {
    input = element("output", { id, name, title: help, "aria-describedby": `why-${name}` }, "1");
  } else {
    input = element("input", { ...common, type: "text", inputmode: kind === "count" ? "numeric" : null, placeholder: name === "budget" ? "as the device has" : "default", spellcheck: "false", autocomplete: "off" });
  }
  if (kind === "count") {
    const scaled = (sign, title, change) => element("button", { type: "button", class: "scale", title: `${title} ${label.toLowerCase()}`, "aria-label": `${title} ${label.toLowerCase()}`, onclick: () => {
      const now = Number(input.value || input.dataset.own || 1);
      if (!(now >= 1)) return;
      input.value = String(change(now));
      changed();
    } }, sign);
    extra.push(scaled("÷2", "Halve", (now) => Math.max(1, Math.floor(now / 2))), scaled("×2", "Double", (now) => now * 2));
  }
  if (START[name] != null) input.value = START[name];
  fields.set(name, input);
  return element("div", { class: `field ${name}` },
    element("label", { for: id }, label), element("div", { class: "entry" }, input, extra),
    element("small", { id: `why-${name}`, class: "why" }));
};

const makeControls = (parent, changed) => {
  const groups = new Map();
  for (const control of CONTROLS) {
    if (!groups.has(control[3])) groups.set(control[3], []);
    groups.get(control[3]).push(field(control, changed));
  }
  for (const [name, parts] of groups) parent.append(element("fieldset", null, element("legend", null, name), parts));
  parent.addEventListener("input", changed);
  parent.addEventListener("submit", (event) => event.preventDefault());
};

// What does not apply to the model cannot be changed, and says why.
const disable = () => {
  const model = choices.models.find((one) => one.name === fields.get("model").value);
  const without = new Map(model?.without ?? []);
  const gpus = Number(fields.get("gpus").value || 1);
  if (gpus <= 1) for (const name of ["tp", "replicate", "reshard"]) if (!without.has(name)) without.set(name, "For several GPUs.");
  const shards = gpus / (Number(fields.get("tp").value || 1) * Number(fields.get("replicate").value || 1));
  if (!without.has("reshard") && !(shards > 1)) without.set("reshard", "For FSDP over several GPUs.");
  const derived = fields.get("fsdp");
  derived.textContent = without.has("gpus") || gpus <= 1 ? "1" : Number.isInteger(shards) && shards > 0 ? String(shards) : "–";
  for (const [name, input] of fields) {
    const why = without.get(name) ?? "";
    input.disabled = why !== "";
    for (const button of input.parentNode.querySelectorAll("button")) button.disabled = why !== "";
    byId(`why-${name}`).textContent = why;
  }
};

// What is chosen; nothing of what does not apply.
const asked = () => {
  const values = {};
  for (const [name, input] of fields) if (name !== "fsdp" && !input.disabled && input.value) values[name] = input.value.trim();
  return values;
};
