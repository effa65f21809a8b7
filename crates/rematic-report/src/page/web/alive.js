// What is in memory right after an operator, by operator or by module, and who holds it.

const MOST_ROWS = 12;

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
    const rows = this.steps.residents.map(([sum, many, cells]) => [[bytes(sum), null, sum], many > 1 ? `${count(many)}×` : "", ...cells]);
    return table("At the peak, the largest first", this.columns("operator"), this.shortened(rows));
  }

  shares(point) {
    const rows = CATEGORIES.map((category, index) => [category, this.steps.categories[index][point]])
      .filter(([, value]) => value > 0)
      .sort((a, b) => b[1] - a[1])
      .map(([category, value]) => [bytes(value), category]);
    return table("By category; one by one it is listed at the peak, and for the budget that this page was made for", [["bytes", "number"], ["category"]], rows);
  }

  residents(moment) {
    const { lives } = this.steps;
    const groups = new Map();
    for (let life = 0; life < lives.length; life++) {
      if (lives.from[life] > moment || moment >= lives.until[life]) continue;
      const { key, cells } = this.group(lives, life, moment);
      const found = groups.get(key);
      if (found) {
        found.bytes += lives.bytes[life];
        found.count += 1;
      } else {
        groups.set(key, { bytes: lives.bytes[life], count: 1, cells });
      }
    }
    const all = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
    const rows = all.map(({ bytes: sum, count: many, cells }) => [[bytes(sum), null, sum], many > 1 ? `${count(many)}×` : "", ...cells]);
    return table("The largest first", this.columns(this.grouping), this.shortened(rows));
  }

  // The largest, and the others as one.
  shortened(rows) {
    const rest = rows.slice(MOST_ROWS).reduce((sum, row) => sum + row[0][2], 0);
    if (!rest) return rows.slice(0, MOST_ROWS);
    const cells = rows[0].slice(2).map(() => "");
    cells[cells.length > 1 ? 1 : 0] = `${count(rows.length - MOST_ROWS)} smaller ones`;
    return [...rows.slice(0, MOST_ROWS), [[bytes(rest), null, rest], "", ...cells]];
  }

  columns(grouping) {
    return grouping === "operator"
      ? [["bytes", "number"], ["", "number"], ["category"], ["made by", "name"], ["in", "name"], ["held by", "name"]]
      : [["bytes", "number"], ["", "number"], ["module", "name"]];
  }

  group(lives, life, moment) {
    const maker = lives.maker[life] - 1;
    const module = maker >= 0 ? opModule(maker) : modules[lives.owner[life] - 1];
    if (this.grouping === "module") {
      const name = module?.inner ?? (maker >= 0 ? "outside of all modules" : CATEGORIES[lives.kind[life] >> 1]);
      return { key: name, cells: [name] };
    }
    const held = moment < lives.held[life];
    const holder = lives.holders[held ? lives.heldBy[life] : lives.keptBy[life]];
    const category = CATEGORIES[lives.kind[life] >> 1];
    const earlier = category === "activation" ? "the previous step" : "before the step";
    const made = maker >= 0 ? opName(maker) + (lives.kind[life] % 2 ? " (again)" : "") : earlier;
    // "recomputed for model.layers.3" is alike in all layers.
    const alike = holder.replace(/\.\d+(?=\.|$)/g, ".*");
    const cells = [category, made, module?.alike ?? "", alike];
    return { key: cells.join("\n"), cells };
  }
}
