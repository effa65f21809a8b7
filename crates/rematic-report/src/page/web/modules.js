// The tree of modules, each as wide as what it takes, and the operators of the one that is chosen. Neighbours of a list that
// are alike, as the layers of a model are, are one.

const ROW = 28;
const NARROWEST = 3;
const PAGE = 200;

class ModuleTree {
  constructor(parent, operators, plain) {
    this.operators = operators;
    this.mode = "activations";
    this.root = modules.findIndex((module) => module.parent < 0);
    this.top = this.root;
    this.chosen = this.root;
    this.hidesViews = true;
    this.made = new Float64Array(ops.length);
    this.keeps = new Float64Array(ops.length);
    this.sums = { activations: this.activations(plain), time: this.times(), freed: null };
    this.path = element("p", { class: "path" });
    this.icicle = element("div", { class: "icicle", role: "tree", "aria-label": "Modules" });
    this.icicle.addEventListener("keydown", (event) => this.typed(event));
    const options = [["activations", "activations after forward"], ["time", "time"], ["freed", "freed by the plan"]];
    const choose = (mode) => {
      this.mode = mode;
      this.draw();
    };
    parent.append(choice("Width by", options, this.mode, choose), this.path, this.icicle);
    new ResizeObserver(() => this.draw()).observe(this.icicle);
  }

  set(plan) {
    this.freed = new Float64Array(modules.length);
    this.decisions = new Map();
    for (const [module, start, freed, policy] of plan.regions) {
      this.freed[module] += freed;
      [...data.policies[policy]].forEach((decision, offset) => this.decisions.set(start + offset, decision));
    }
    this.sums.freed = this.upwards(Float64Array.from(this.freed));
    this.fold();
    this.chosen = this.first[this.chosen] ?? this.chosen;
    this.draw();
    this.list();
  }

  // Modules are alike if they are of one class, their operators do and keep the same under the plan, and so do those inside.
  fold() {
    const own = modules.map(() => []);
    for (let op = 0; op < ops.length; op++) {
      const module = ops.module[op] - 1;
      if (module >= 0) own[module].push(`${ops.phase[op]} ${ops.name[op]} ${ops.time[op]} ${this.made[op]} ${this.keeps[op]} ${this.decisions.get(op) ?? ""}`);
    }
    const kinds = new Map();
    const kind = new Array(modules.length);
    this.groups = new Array(modules.length);
    // For every module, the first of those that it is one with.
    this.first = modules.map((_, module) => module);
    for (let module = modules.length - 1; module >= 0; module--) {
      const groups = [];
      for (const child of modules[module].children) {
        const last = groups[groups.length - 1];
        if (last && kind[last[0]] === kind[child] && /^\d+$/.test(modules[child].name)) last.push(child);
        else groups.push([child]);
      }
      for (const group of groups) for (const child of group) this.first[child] = group[0];
      this.groups[module] = groups;
      const key = [modules[module].kind, this.freed[module], ...own[module], "in", ...modules[module].children.map((child) => kind[child])].join("\n");
      if (!kinds.has(key)) kinds.set(key, kinds.size);
      kind[module] = kinds.get(key);
    }
  }

  // The neighbours that a module stands for.
  alike(module) {
    return this.groups?.[modules[module].parent]?.find((group) => group[0] === module) ?? [module];
  }

  // Its name, with those that it stands for: layers.0-31.
  named(module, name) {
    const group = this.alike(module);
    if (group.length < 2) return name;
    return `${name}-${modules[group[group.length - 1]].name}`;
  }

  // A module takes what it takes itself and what those in it take.
  upwards(own) {
    for (let module = modules.length - 1; module >= 0; module--) {
      const { parent } = modules[module];
      if (parent >= 0) own[parent] += own[module];
    }
    return own;
  }

  // The activations in memory when forward is over, by the operator and the module that made them.
  activations(plain) {
    const own = new Float64Array(modules.length);
    let last = -1;
    for (let op = 0; op < ops.length; op++) if (ops.phase[op] === 0) last = op;
    const { lives } = plain;
    for (let life = 0; life < lives.length; life++) {
      const maker = lives.maker[life] - 1;
      if (maker < 0) continue;
      this.made[maker] += lives.bytes[life];
      const there = lives.from[life] <= last && last < lives.until[life];
      if (!there || lives.kind[life] >> 1 !== ACTIVATION) continue;
      this.keeps[maker] += lives.bytes[life];
      if (ops.module[maker]) own[ops.module[maker] - 1] += lives.bytes[life];
    }
    return this.upwards(own);
  }

  times() {
    const own = new Float64Array(modules.length);
    for (let op = 0; op < ops.length; op++) if (ops.module[op]) own[ops.module[op] - 1] += opTime(op);
    return this.upwards(own);
  }

  text(value) {
    return this.mode === "time" ? millis(value) : bytes(value);
  }

  draw() {
    const width = this.icicle.clientWidth;
    const sums = this.sums[this.mode];
    if (!width || !sums || this.root < 0 || !this.groups) return;
    const cells = [];
    let deepest = 0;
    const place = (module, from, to, depth, many) => {
      if (to - from < NARROWEST) return;
      deepest = Math.max(deepest, depth);
      cells.push(this.cell(module, from, to, depth, sums, many));
      let at = from;
      for (const group of this.groups[module]) {
        const share = sums[module] > 0 ? ((sums[group[0]] * group.length) / sums[module]) * (to - from) : 0;
        place(group[0], at, at + share, depth + 1, group.length);
        at += share;
      }
    };
    place(this.top, 0, width, 0, 1);
    this.icicle.style.height = `${(deepest + 1) * ROW}px`;
    const focused = this.icicle.contains(document.activeElement);
    this.icicle.replaceChildren(...cells);
    // One cell is reached by Tab: the chosen one, or else the nearest around it.
    let reached = this.chosen;
    while (reached >= 0 && !this.cellOf(reached)) reached = this.first[modules[reached].parent] ?? -1;
    const cell = this.cellOf(reached) ?? this.icicle.firstElementChild;
    if (cell) cell.tabIndex = 0;
    if (focused) cell?.focus();
    this.drawPath(sums);
  }

  cell(module, from, to, depth, sums, many) {
    const { name, inner, kind } = modules[module];
    const value = sums[module] * many;
    const share = sums[this.top] > 0 ? Math.min(1, value / sums[this.top]) : 0;
    const times = many > 1 ? `${count(many)}× ` : "";
    const button = element("button", {
      type: "button", role: "treeitem", "data-module": module, "aria-selected": module === this.chosen, tabindex: module === this.chosen ? 0 : -1,
      "aria-current": module === this.chosen, "aria-level": depth + 1,
      title: `${this.named(module, inner)} (${times}${kind}): ${this.text(value)}${many > 1 ? `, each ${this.text(sums[module])}` : ""}, ${percent(share)}`,
      class: this.freed?.[module] > 0 ? "planned" : null,
      onclick: () => this.choose(module), ondblclick: () => this.zoom(module),
    }, to - from > 30 ? `${this.named(module, name)} ${to - from > 130 ? times + this.text(sums[module]) : ""}` : "");
    button.style.left = `${from}px`;
    button.style.width = `${to - from}px`;
    button.style.top = `${depth * ROW}px`;
    button.style.setProperty("--heat", `${Math.round(18 + (Number(color("hottest")) - 18) * Math.sqrt(share))}%`);
    return button;
  }

  drawPath(sums) {
    const chain = [];
    for (let module = this.top; module >= 0; module = modules[module].parent) chain.unshift(module);
    const link = (module) => element("button", { type: "button", onclick: () => {
        this.zoom(module);
        this.focus(module);
      } }, modules[module].name);
    const parts = chain.slice(0, -1).flatMap((module) => [link(module), " › "]);
    const note = sums[this.top] > 0 ? "" : this.mode === "freed" ? ": this plan frees nothing here" : ": nothing here";
    this.path.replaceChildren(...parts, element("strong", null, modules[this.top].name), ` ${this.text(sums[this.top])}${note}. Click a module for its operators, double-click or Enter to look inside.`);
  }

  choose(module) {
    this.chosen = module;
    for (const button of this.icicle.children) {
      const here = Number(button.dataset.module) === module;
      button.setAttribute("aria-current", here);
      button.setAttribute("aria-selected", here);
      button.tabIndex = here ? 0 : -1;
    }
    this.list();
  }

  zoom(module) {
    this.top = module;
    this.choose(module);
    this.draw();
  }

  cellOf(module) {
    return this.icicle.querySelector(`[data-module="${module}"]`);
  }

  focus(module) {
    this.cellOf(module)?.focus();
  }

  typed(event) {
    const { parent } = modules[this.chosen];
    const firsts = (module) => this.groups[module]?.map((group) => group[0]) ?? [];
    const siblings = parent >= 0 ? firsts(parent) : [this.chosen];
    const beside = (by) => siblings[siblings.indexOf(this.chosen) + by];
    const drawn = (module) => (module != null && this.cellOf(module) ? module : null);
    const go = (module) => {
      if (drawn(module) == null) return;
      this.choose(module);
      this.focus(module);
    };
    const keys = {
      ArrowRight: () => go(beside(1)),
      ArrowLeft: () => go(beside(-1)),
      ArrowDown: () => go(firsts(this.chosen).find((child) => drawn(child) != null)),
      ArrowUp: () => go(this.first[parent]),
      Enter: () => {
        this.zoom(this.chosen);
        this.focus(this.chosen);
      },
      Escape: () => {
        this.zoom(this.root);
        this.focus(this.root);
      },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  // The forward operators of the chosen module and of those in it; what is alike is listed once.
  list(most = PAGE) {
    const many = new Map();
    const add = (module, times) => {
      many.set(module, times);
      for (const group of this.groups[module]) add(group[0], times * group.length);
    };
    if (this.root >= 0) add(this.chosen, 1);
    const rows = [];
    let [forward, backward, total, hidden] = [0, 0, 0, 0];
    for (let op = 0; op < ops.length; op++) {
      const times = many.get(ops.module[op] - 1);
      if (!times) continue;
      if (ops.phase[op] === 1) backward += opTime(op) * times;
      if (ops.phase[op] !== 0) continue;
      forward += opTime(op) * times;
      if (this.hidesViews && !(opTime(op) > 0) && !(this.made[op] > 0)) {
        hidden += 1;
        continue;
      }
      total += 1;
      if (total <= most) rows.push(this.row(op, times));
    }
    const columns = [["", "number"], ["operator", "name"], ["in", "name"], ["the plan", ""], ["time", "number"], ["makes", "number"], ["there after forward", "number"]];
    this.operators.replaceChildren(...this.listed(this.title(total, forward, backward), columns, rows, hidden, total > most && (() => this.list(most + 5 * PAGE)), total));
  }

  row(op, times) {
    const decision = { s: "saved", o: "offloaded", r: "recomputed", k: "skipped" }[this.decisions?.get(op)] ?? "";
    const kind = { saved: "save", offloaded: "save", recomputed: "recompute", skipped: "recompute" }[decision];
    return [times > 1 ? `${count(times)}×` : "", opName(op), opModule(op).alike, [decision, kind], millis(opTime(op)), bytes(this.made[op]), bytes(this.keeps[op])];
  }

  title(total, forward, backward) {
    if (this.root < 0) return "No modules";
    const { inner, kind } = modules[this.chosen];
    const group = this.alike(this.chosen);
    const each = group.length > 1 ? `${count(group.length)} alike, each with ` : "";
    return `${this.named(this.chosen, inner)} (${kind}): ${each}${count(total)} kinds of forward operators, forward ${millis(forward)}, backward ${millis(backward)}`;
  }

  listed(title, columns, rows, hidden, further, total) {
    const more = () => {
      const { scrollTop } = this.operators.querySelector(".tall");
      further();
      const longer = this.operators.querySelector(".tall");
      longer.scrollTop = scrollTop;
      longer.focus();
    };
    const toggle = () => {
      this.hidesViews = !this.hidesViews;
      this.list();
      this.operators.querySelector(".views")?.focus();
    };
    const views = hidden || !this.hidesViews
      ? element("button", { type: "button", class: "views", "aria-pressed": !this.hidesViews, onclick: toggle },
        this.hidesViews ? `Show ${count(hidden)} views and empty operators` : "Hide views and empty operators") : null;
    return [table(title, columns, rows, "scroll tall"), element("p", { class: "tools" }, further ? element("button", { type: "button", onclick: more }, `Show more of ${count(total)}`) : null, views)];
  }
}
