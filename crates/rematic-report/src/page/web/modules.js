// The tree of modules, each as wide as what it takes, and the operators of the one that is chosen.

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
    this.plan = data.chosen;
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
    this.plan = plan;
    this.freed = new Float64Array(modules.length);
    this.decisions = new Map();
    for (const [module, start, freed, policy] of plan.regions) {
      this.freed[module] += freed;
      [...data.policies[policy]].forEach((decision, offset) => this.decisions.set(start + offset, decision));
    }
    this.sums.freed = this.upwards(Float64Array.from(this.freed));
    this.draw();
    this.list();
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
    if (!width || !sums || this.root < 0) return;
    const cells = [];
    let deepest = 0;
    const place = (module, from, to, depth) => {
      if (to - from < NARROWEST) return;
      deepest = Math.max(deepest, depth);
      cells.push(this.cell(module, from, to, depth, sums));
      let at = from;
      for (const child of modules[module].children) {
        const share = sums[module] > 0 ? (sums[child] / sums[module]) * (to - from) : 0;
        place(child, at, at + share, depth + 1);
        at += share;
      }
    };
    place(this.top, 0, width, 0);
    this.icicle.style.height = `${(deepest + 1) * ROW}px`;
    const focused = this.icicle.contains(document.activeElement);
    this.icicle.replaceChildren(...cells);
    // One cell is reached by Tab: the chosen one, or else the nearest around it.
    let reached = this.chosen;
    while (reached >= 0 && !this.cellOf(reached)) reached = modules[reached].parent;
    const cell = this.cellOf(reached) ?? this.icicle.firstElementChild;
    if (cell) cell.tabIndex = 0;
    if (focused) cell?.focus();
    this.drawPath(sums);
  }

  cell(module, from, to, depth, sums) {
    const { name, inner, kind } = modules[module];
    const value = sums[module];
    const share = sums[this.top] > 0 ? value / sums[this.top] : 0;
    const button = element("button", {
      type: "button", role: "treeitem", "data-module": module, "aria-selected": module === this.chosen, tabindex: module === this.chosen ? 0 : -1,
      "aria-current": module === this.chosen, "aria-level": depth + 1,
      title: `${inner} (${kind}): ${this.text(value)}, ${percent(share)}`,
      class: this.freed?.[module] > 0 ? "planned" : null,
      onclick: () => this.choose(module), ondblclick: () => this.zoom(module),
    }, to - from > 30 ? `${name} ${to - from > 130 ? this.text(value) : ""}` : "");
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
    const { parent, children } = modules[this.chosen];
    const siblings = modules[parent]?.children ?? [this.chosen];
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
      ArrowDown: () => go(children.find((child) => drawn(child) != null)),
      ArrowUp: () => go(parent),
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

  // The forward operators of the chosen module and of those in it.
  list(most = PAGE) {
    const inside = new Set();
    const add = (module) => {
      inside.add(module);
      modules[module].children.forEach(add);
    };
    if (this.root >= 0) add(this.chosen);
    const rows = [];
    let [forward, backward, total] = [0, 0, 0];
    for (let op = 0; op < ops.length; op++) {
      if (!inside.has(ops.module[op] - 1)) continue;
      if (ops.phase[op] === 1) backward += opTime(op);
      if (ops.phase[op] !== 0) continue;
      forward += opTime(op);
      total += 1;
      if (total > most) continue;
      const decision = { s: "saved", r: "recomputed" }[this.decisions?.get(op)] ?? "";
      const kind = { saved: "save", recomputed: "recompute" }[decision];
      rows.push([count(op + 1), opName(op), opModule(op).inner, [decision, kind], millis(opTime(op)), bytes(this.made[op]), bytes(this.keeps[op])]);
    }
    const columns = [["", "number"], ["operator", "name"], ["in", "name"], ["the plan", ""], ["time", "number"], ["makes", "number"], ["there after forward", "number"]];
    const title = this.root < 0 ? "No modules" : `${modules[this.chosen].inner} (${modules[this.chosen].kind}): ${count(total)} forward operators, forward ${millis(forward)}, backward ${millis(backward)}`;
    const further = () => {
      const { scrollTop } = this.operators.querySelector(".tall");
      this.list(most + 5 * PAGE);
      const longer = this.operators.querySelector(".tall");
      longer.scrollTop = scrollTop;
      longer.focus();
    };
    const more = total > most
      ? element("button", { type: "button", onclick: further }, `Show more of ${count(total)}`)
      : null;
    this.operators.replaceChildren(table(title, columns, rows, "scroll tall"), ...(more ? [more] : []));
  }
}
