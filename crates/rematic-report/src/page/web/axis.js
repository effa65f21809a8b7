// The axis that both charts share: an operator is at the same place in both. Operators that run again push the others to the
// right; the step as it is stands still meanwhile. Views and operators that do nothing have no width.

// How close one may look: so many points of the step.
const CLOSEST = 12;
const WEIGHTS = {
  operators: (op) => (opTime(op) > 0 ? 1 : 0),
  time: (op) => opTime(op),
};

class Axis {
  constructor(plain) {
    this.plain = plain;
    this.mode = "operators";
    this.planned = null;
    this.charts = [];
    this.at = new Map();
    for (let point = 0; point < plain.length; point++) this.at.set(plain.op(point), point);
    this.measure();
    this.view = [0, this.length];
  }

  // Another plan, or another measure: the same share of the step stays in view.
  set({ planned = this.planned, mode = this.mode }) {
    const shares = this.view.map((place) => place / this.length);
    Object.assign(this, { planned, mode });
    this.measure();
    this.view = shares.map((share) => share * this.length);
  }

  measure() {
    const { plain, planned } = this;
    let weight = WEIGHTS[this.mode];
    let sums = cumulated(plain.length, (point) => weight(plain.op(point)));
    if (!(sums[plain.length] > 0)) {
      // Where nothing takes any time, all are alike.
      weight = () => 1;
      sums = cumulated(plain.length, weight);
    }
    const [own, other] = !planned ? [sums, sums]
      : planned.lives ? this.exact(planned, weight) : this.between(planned, sums, weight);
    this.length = Math.max(own[own.length - 1], 1e-12);
    this.starts = new Map([[plain, own], [planned ?? plain, other]]);
  }

  // Where the step as it is has what has just run; nothing for what runs again.
  plainPoint(planned, point) {
    return planned.again(point) ? undefined : this.at.get(planned.op(point));
  }

  // A plan of which every operator is known.
  exact(planned, weight) {
    const other = cumulated(planned.length, (point) => weight(planned.op(point)));
    const own = new Float64Array(this.plain.length + 1).fill(other[planned.length]);
    for (let point = 0; point < planned.length; point++) {
      const at = this.plainPoint(planned, point);
      if (at != null) own[at] = other[point];
    }
    for (let point = this.plain.length - 1; point >= 0; point--) own[point] = Math.min(own[point], own[point + 1]);
    return [own, other];
  }

  // A plan of which some operators are known: what runs again before each of them is counted, and spread between them.
  between(planned, sums, weight) {
    const { plain } = this;
    let [shown, again] = [0, 0];
    const anchors = [[0, 0]];
    for (let point = 0; point < planned.length; point++) {
      const at = this.plainPoint(planned, point);
      if (planned.again(point)) {
        again += 1;
        shown += weight(planned.op(point));
      } else if (at > anchors[anchors.length - 1][0]) {
        anchors.push([at, Math.max(0, planned.moment(point) - at)]);
      }
    }
    anchors.push([plain.length, Math.max(0, planned.runs - plain.length)]);
    const each = again ? shown / again : 0;
    const own = new Float64Array(plain.length + 1);
    let next = 0;
    for (let point = 0; point <= plain.length; point++) {
      while (next + 2 < anchors.length && anchors[next + 1][0] <= point) next += 1;
      const [[from, before], [to, after]] = [anchors[next], anchors[next + 1]];
      own[point] = sums[point] + each * (before + ((after - before) * (point - from)) / Math.max(to - from, 1));
    }
    const places = Float64Array.from({ length: planned.length }, (_, point) => own[this.plainPoint(planned, point)] ?? NaN);
    return [own, halfway(places, planned, own[plain.length])];
  }

  // The point of a step that is at a place.
  pointAt(steps, place) {
    return Math.max(0, Math.min(steps.length - 1, lastAtMost(this.starts.get(steps), place)));
  }

  middle(steps, point) {
    const starts = this.starts.get(steps);
    return (starts[point] + starts[point + 1]) / 2;
  }

  get closest() {
    return (this.length * Math.min(CLOSEST, this.plain.length)) / Math.max(this.plain.length, 1);
  }

  get isWhole() {
    return this.view[1] - this.view[0] >= this.length * (1 - 1e-9);
  }

  show(start, end) {
    const width = Math.max(this.closest, Math.min(this.length, end - start));
    const from = Math.max(0, Math.min(this.length - width, start));
    this.view = [from, from + width];
    this.redraw();
  }

  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    const [start, end] = this.view;
    const width = (end - start) * factor;
    const share = (around - start) / (end - start);
    this.show(around - share * width, around + (1 - share) * width);
  }

  redraw() {
    for (const chart of this.charts) chart.redraw();
  }
}

// What comes before each, and at the end all of it.
const cumulated = (length, of) => {
  const sums = new Float64Array(length + 1);
  for (let point = 0; point < length; point++) sums[point + 1] = sums[point] + of(point);
  return sums;
};

// Each point begins halfway between its neighbours; what has no place of its own lies between those that have one.
const halfway = (places, planned, end) => {
  let last = 0;
  for (let point = 0; point < places.length; point++) {
    if (!Number.isNaN(places[point])) {
      last = Math.max(last, places[point]);
      places[point] = last;
      continue;
    }
    let next = point;
    while (next < places.length && Number.isNaN(places[next])) next += 1;
    const [base, to] = [last, next < places.length ? Math.max(last, places[next]) : end];
    const [from, until] = [point ? planned.moment(point - 1) : 0, next < places.length ? planned.moment(next) : planned.runs];
    for (; point < next; point++) {
      last = base + ((to - base) * (planned.moment(point) - from)) / Math.max(until - from, 1);
      places[point] = last;
    }
    point -= 1;
  }
  const starts = new Float64Array(places.length + 1);
  for (let point = 1; point < places.length; point++) starts[point] = (places[point - 1] + places[point]) / 2;
  starts[places.length] = end;
  return starts;
};

// The last place of an ascending list that is at most a value; -1 if there is none.
const lastAtMost = (sorted, value) => {
  let [low, high] = [-1, sorted.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (sorted[middle] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
};
