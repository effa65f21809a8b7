// What is in memory right after an operator, by operator or by module, and who holds it.

const MOST_ROWS = 9;

class Alive {
  constructor(parent) {
    this.parent = parent;
    this.grouping = "operator";
    this.heading = element("p", { "aria-live": "polite" });
    this.rows = element("div");
    const options = [["operator", "by operator"], ["module", "by module"]];
    const choose = (grouping) => {
      this.grouping = grouping;
      this.render();
    };
    this.choice = choice("Together", options, this.grouping, choose);
    this.parent.append(this.heading, this.choice, this.rows);
  }

  // Drawn at most once a frame: a pointer moves faster.
  show(caption, steps, point) {
    Object.assign(this, { caption, steps, point });
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.render();
    });
  }

  render() {
    const { steps, point } = this;
    if (!steps) return;
    const moment = steps.moment(point);
    this.heading.replaceChildren(element("strong", null, `${this.caption}: `),
      `right after operator ${count(moment + 1)} of ${count(steps.runs)}, ${sentence(steps, point)}, `,
      element("data", { value: steps.totals[point] }, bytes(steps.totals[point])), " in use.");
    this.choice.hidden = !steps.lives;
    this.rows.replaceChildren(steps.lives ? this.residents(moment) : point === steps.peak ? this.atPeak() : this.shares(point));
  }

  // Of the plans for other budgets, the page holds what there is at their peaks.
  atPeak() {
    return this.listed("Largest tensors at the peak", this.steps.residents);
  }

  shares(point) {
    const rows = CATEGORIES.map((category, index) => [this.steps.categories[index][point], 1, [category]])
      .filter(([value]) => value > 0)
      .sort((a, b) => b[0] - a[0]);
    return this.listed("By category; tensor by tensor at the peak, and for the budget that this page was made for", rows);
  }

  residents(moment) {
    const { lives } = this.steps;
    const groups = new Map();
    for (let life = 0; life < lives.length; life++) {
      if (lives.from[life] > moment || moment >= lives.until[life]) continue;
      const cells = this.group(lives, life, moment);
      const key = cells.join("\n");
      const found = groups.get(key);
      if (found) {
        found[0] += lives.bytes[life];
        found[1] += 1;
      } else {
        groups.set(key, [lives.bytes[life], 1, cells]);
      }
    }
    return this.listed("Largest tensors first", [...groups.values()].sort((a, b) => b[0] - a[0]));
  }

  // The largest, and the others as one.
  listed(caption, rows) {
    const row = ([sum, many, cells]) => [[bytes(sum), null, sum], many > 1 ? `${count(many)}×` : "", what(cells)];
    const shown = rows.slice(0, MOST_ROWS).map(row);
    const rest = rows.slice(MOST_ROWS).reduce((sum, [value]) => sum + value, 0);
    if (rest) shown.push([[bytes(rest), null, rest], "", `${count(rows.length - MOST_ROWS)} smaller kinds`]);
    return table(caption, [["bytes", "number"], ["", "number"], ["what", "name"]], shown);
  }

  // Category, what made it, its module, its holder; or the module alone. Layers that are alike are one.
  group(lives, life, moment) {
    const maker = lives.maker[life] - 1;
    const module = maker >= 0 ? opModule(maker) : modules[lives.owner[life] - 1];
    const category = CATEGORIES[lives.kind[life] >> 1];
    if (this.grouping === "module") return [category, "", module?.alike ?? (maker >= 0 ? "outside of all modules" : ""), ""];
    const held = moment < lives.held[life];
    const holder = lives.holders[held ? lives.heldBy[life] : lives.keptBy[life]];
    const earlier = category === "activation" ? "the previous step" : "before the step";
    const made = maker >= 0 ? opName(maker) + (lives.kind[life] % 2 ? " (again)" : "") : earlier;
    return [category, made, module?.alike ?? "", holder.replace(/\.\d+(?=\.|$)/g, ".*")];
  }
}

// A tensor in words: its category, then what made it and where, then who holds it.
const what = ([category, made, module, holder]) => {
  const swatch = element("span", { class: "swatch" }, category);
  swatch.style.setProperty("--color", `var(--${category})`);
  const origin = made && (/ step$/.test(made) ? `from ${made}` : `by ${made}`);
  const text = [origin, module && `in ${module}`].filter(Boolean).join(" ");
  const isHeld = holder && !/^(saved|recomputed|input) /.test(holder);
  return element("span", null, swatch, text ? ` ${text}` : "", holder ? element("small", null, isHeld ? `held by ${holder}` : holder) : null);
};
