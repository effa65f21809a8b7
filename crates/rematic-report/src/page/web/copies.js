// What can be copied for a budget: the command, the call of `rematic.auto`, the plan as Python, and as the file of `-o`.

// The plan's file: what all plans of the page share, and what is this one's.
const planDocument = (plan) => ({
  ...data.frame,
  version: plan.version,
  budget_bytes: plan.budget_bytes,
  peak_bytes: plan.peak_bytes,
  forward_bytes: plan.forward_bytes,
  recompute_ms: plan.recompute_ms,
  lower_bound_ms: plan.lower_bound_ms,
  ...(plan.offload ? { offload: plan.offload } : {}),
  regions: plan.regions.map(([module, start, freed, policy, call, discard, recompute, then], at) => ({
    module: modules[module].path,
    call,
    ...(then.length ? { then: then.map(([module, call]) => ({ module: modules[module].path, call })) } : {}),
    discard,
    freed_bytes: freed,
    recompute_ms: recompute,
    ...(plan.moves?.[at] ? { offload: plan.moves[at] } : {}),
    policy: [...data.policies[policy]].map((decision, index) => ({
      index, op: ops.names[ops.name[start + index]], decision: { s: "save", o: "offload", r: "recompute", k: "skip" }[decision],
    })),
  })),
});

const planPython = ({ python: [about, decisions] }) => {
  const [start, middle, end] = data.python;
  return start + about + middle + decisions + end;
};

// Whole gibibytes read better than bytes; all else is exact.
const exactly = (budget) => (budget % 1024 ** 3 === 0 ? `${budget / 1024 ** 3}GiB` : budget % 1024 ** 2 === 0 ? `${budget / 1024 ** 2}MiB` : `${budget}`);

const planCommand = (plan, isOwn) => data.command + (isOwn && data.for_device ? "" : ` --budget ${exactly(plan.budget_bytes)}`);

const autoCall = (plan, isOwn) => {
  const size = exactly(plan.budget_bytes);
  const budget = isOwn && data.for_device ? "" : `budget=${/^\d+$/.test(size) ? size : `"${size}"`}, `;
  const shared = data.frame.world_size > 1 && !data.has_collectives ? `, world_size=${data.frame.world_size}` : "";
  return `plan = rematic.auto(model, batch, ${budget}device="${data.frame.device}"${shared})`;
};

const showCopies = (parent, plan, isOwn) => {
  const fits = plan.peak_bytes <= plan.budget_bytes;
  parent.replaceChildren(element("span", null, `Copy for ${bytes(plan.budget_bytes)}: `),
    ...[
      data.command != null && copyButton("Command", () => planCommand(plan, isOwn), data.command != null ? planCommand(plan, isOwn) : ""),
      fits && !plan.offload && copyButton("auto call", () => autoCall(plan, isOwn), autoCall(plan, isOwn)),
      fits && !plan.offload && copyButton("Python", () => planPython(plan), "A Python file that applies the plan with torch alone"),
      fits && copyButton("Plan", () => `${JSON.stringify(planDocument(plan), null, 2)}\n`, "The plan with every decision, as `rematic replay --plan` takes it"),
    ].filter(Boolean));
};
