// What is said at the pointer: the operator there, and the memory of both charts.

const NEAR = 14;
const SHARES = 3;

class Readout {
  constructor(box, axis) {
    Object.assign(this, { box, axis });
  }

  show(chart, point, pointer) {
    this.box.hidden = point == null || !pointer;
    if (this.box.hidden) return;
    const { steps } = chart;
    const place = this.axis.middle(steps, point);
    const totals = this.axis.charts.filter((one) => !one.hidden && one.steps).map((one) => {
      const at = one === chart ? point : this.axis.pointAt(one.steps, place);
      const text = [element("span", null, one.caption.textContent), element("data", { value: one.steps.totals[at] }, bytes(one.steps.totals[at]))];
      return element("p", { class: one === chart ? "here" : null }, text);
    });
    const shares = STACK.map((category) => [CATEGORIES[category], steps.categories[category][point]])
      .filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]).slice(0, SHARES)
      .map(([name, value]) => {
        const swatch = element("span", { class: "swatch" }, name);
        swatch.style.setProperty("--color", `var(--${name})`);
        return element("p", null, swatch, element("span", null, bytes(value)));
      });
    this.box.replaceChildren(element("strong", null, sentence(steps, point)), ...totals, ...shares);
    this.place(pointer);
  }

  // Beside the pointer, and within the charts.
  place({ clientX, clientY }) {
    const around = this.box.offsetParent.getBoundingClientRect();
    const [width, height] = [this.box.offsetWidth, this.box.offsetHeight];
    const x = clientX - around.left;
    const left = x + NEAR + width > around.width ? x - NEAR - width : x + NEAR;
    const top = Math.min(clientY - around.top + NEAR, around.height - height);
    this.box.style.left = `${Math.max(0, Math.min(around.width - width, left))}px`;
    this.box.style.top = `${Math.max(0, top)}px`;
  }
}
