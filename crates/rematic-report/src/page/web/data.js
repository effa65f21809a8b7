// The document in the page, unpacked.

// Numbers of seven bits a byte, lowest first, in base64.
const numbers = (text, length, differences) => {
  const packed = atob(text);
  const unpacked = new Float64Array(length);
  let at = 0;
  let last = 0;
  for (let index = 0; index < length; index++) {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = packed.charCodeAt(at++);
      value += (byte & 127) * scale;
      if (byte < 128) break;
      scale *= 128;
    }
    if (differences) {
      last += value % 2 ? -(value + 1) / 2 : value / 2;
      value = last;
    }
    unpacked[index] = value;
  }
  return unpacked;
};

const data = JSON.parse(byId("data").textContent);
const CATEGORIES = data.categories;
const ACTIVATION = CATEGORIES.indexOf("activation");
const PHASES = ["forward", "backward", "optimizer"];
// What hardly changes lies at the bottom.
const STACK = ["parameter", "optimizer", "buffer", "other", "gradient", "activation", "temp"]
  .map((name) => CATEGORIES.indexOf(name));

const modules = data.modules.map(([name, kind, parent]) => ({ name, kind, parent: parent - 1, children: [] }));
for (const [index, module] of modules.entries()) {
  const parent = modules[module.parent];
  module.path = parent ? `${parent.path}.${module.name}` : module.name;
  // As it is called in code: without the root.
  module.inner = parent ? module.path.slice(module.path.indexOf(".") + 1) : module.name;
  module.alike = module.inner.split(".").map((part) => (/^\d+$/.test(part) ? "*" : part)).join(".");
  parent?.children.push(index);
}

const ops = {
  length: data.ops.count,
  name: numbers(data.ops.name, data.ops.count),
  module: numbers(data.ops.module, data.ops.count, true),
  phase: numbers(data.ops.phase, data.ops.count),
  time: numbers(data.ops.time, data.ops.count),
  names: data.ops.names,
  times: data.ops.times,
};

const opName = (op) => short(ops.names[ops.name[op]]);
const opModule = (op) => modules[ops.module[op] - 1];
const opTime = (op) => ops.times[ops.time[op]];

// A step in which all is known: who lives when.
const recorded = (step) => {
  const run = numbers(step.run, step.runs, true);
  const lives = {
    length: step.lives,
    from: numbers(step.from, step.lives, true),
    until: numbers(step.length, step.lives),
    held: numbers(step.unheld, step.lives),
    maker: numbers(step.maker, step.lives, true),
    owner: numbers(step.owner, step.lives),
    bytes: numbers(step.bytes, step.lives),
    kind: numbers(step.kind, step.lives),
    heldBy: numbers(step.held_by, step.lives),
    keptBy: numbers(step.kept_by, step.lives),
    holders: step.holders,
  };
  const categories = CATEGORIES.map(() => new Float64Array(step.runs + 1));
  for (let life = 0; life < lives.length; life++) {
    lives.until[life] += lives.from[life];
    lives.held[life] = lives.until[life] - lives.held[life];
    lives.bytes[life] = step.sizes[lives.bytes[life]];
    const category = categories[lives.kind[life] >> 1];
    category[lives.from[life]] += lives.bytes[life];
    category[lives.until[life]] -= lives.bytes[life];
  }
  for (const category of categories) {
    for (let moment = 1; moment <= step.runs; moment++) category[moment] += category[moment - 1];
  }
  return series(step.runs, step.runs, null, run, categories, lives);
};

// A step of which the highest moments are known.
const outlined = ({ outline, residents }) => {
  const categories = outline.categories.map((column) => numbers(column, outline.points, true));
  const moment = numbers(outline.moment, outline.points, true);
  const run = numbers(outline.run, outline.points, true);
  return { ...series(outline.points, outline.runs, moment, run, categories, null), residents };
};

const series = (length, runs, moments, run, categories, lives) => {
  const totals = new Float64Array(length);
  let peak = 0;
  for (let point = 0; point < length; point++) {
    for (const category of categories) totals[point] += category[point];
    if (totals[point] > totals[peak]) peak = point;
  }
  return {
    length, runs, categories, totals, lives, peak,
    moment: (point) => (moments ? moments[point] : point),
    op: (point) => run[point] >> 1,
    again: (point) => run[point] % 2 === 1,
  };
};

const sentence = (steps, point) => {
  if (!(point >= 0 && point < steps.length)) return "";
  const op = steps.op(point);
  const module = opModule(op);
  const phase = steps.again(point) ? "recomputed" : PHASES[ops.phase[op]];
  return `${opName(op)}${module ? ` in ${module.inner}` : ""} (${phase})`;
};
