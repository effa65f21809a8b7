// Sizes, times and shares, worded as on the command line.

const bytes = (count) => {
  let value = count;
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]) {
    if (value < 1024) break;
    value /= 1024;
    unit = larger;
  }
  return unit === "B" ? `${count} B` : `${value.toFixed(2)} ${unit}`;
};

const millis = (ms) => {
  const [value, unit] = ms >= 1000 ? [ms / 1000, "s"] : ms >= 1 || ms === 0 ? [ms, "ms"] : [ms * 1000, "µs"];
  return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
};

const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)} %`;

// An operator's name without the overload that most have.
const short = (name) => name.replace(/\.default$/, "");

const count = (number) => number.toLocaleString("en");

// About so many round numbers from 0 to a largest one, in steps of 1, 2 or 5 times a power of the base.
const ticks = (largest, most, base = 10) => {
  if (!(largest > 0)) return [0];
  let step = base === 10 ? 1e-6 : 1;
  const factors = base === 10 ? [1, 2, 5] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
  for (;;) {
    const factor = factors.find((factor) => largest / (step * factor) <= most);
    if (factor) {
      step *= factor;
      break;
    }
    step *= base;
  }
  const found = [];
  for (let value = 0; value <= largest * (1 + 1e-9); value += step) found.push(value);
  return found;
};
