// Reports in a real browser: what they show is what the command line says, and using them changes what it should.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import * as pages from "./page.mjs";
import { SCHEMES, WINDOWS, close, copied, figure, gib, launch, looksWell } from "./page.mjs";

const { RUST_BINARY: rematic, REPORTS: directory, SCREENSHOTS: screenshots } = process.env;
const LLAMA = ["llama-3-8b", "--batch", "2", "--world-size", "8"];
const BUDGET = ["--budget", "40GiB"];
const EVIL = `</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">'"&{{data}}__proto__\u202e${"long".repeat(500)}`;

const run = (...args) => execFileSync(rematic, args, { encoding: "utf8", maxBuffer: 1 << 28 });
const json = (...args) => JSON.parse(run(...args, "--json"));

const report = (name, ...args) => {
  const file = join(directory, `${name}.html`);
  const { status, stderr } = spawnSync(rematic, ["report", ...args, "-o", file], { encoding: "utf8" });
  assert.ok(status === 0 || status === 3, stderr);
  return file;
};

// What was made once is there for other tests.
const made = new Map();
const llama = () => {
  if (!made.has("llama")) made.set("llama", report("llama", ...LLAMA, ...BUDGET));
  return made.get("llama");
};

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

const open = (file, options) => pages.open(browser, `file://${file}`, (url) => url === `file://${file}`, options);
const alive = (page) => page.locator("#alive").innerText();

test("the figures are those of the command line", async () => {
  for (const [name, args, budget] of [
    ["seed-transformer", ["seed-transformer"], ["--budget", "1.6GiB"]],
    ["llama-3-8b", LLAMA, BUDGET],
  ]) {
    const page = await open(name === "llama-3-8b" ? llama() : report(name, ...args, ...budget));
    const plan = json("plan", ...args, ...budget);
    assert.equal(await figure(page, "peak-as-it-is"), plan.baseline_peak_bytes);
    assert.equal(await figure(page, "peak-with-the-plan"), plan.peak_bytes);
    assert.equal(await figure(page, "extra-time"), plan.recompute_ms);
    assert.equal(await figure(page, "budget"), plan.budget_bytes);
    assert.equal(await figure(page, "step"), plan.step_ms);
    assert.equal(await page.locator("#plan tbody tr").count() > 0, plan.regions.length > 0);
    // Both charts, drawn from the lives of the storages, peak where the replay does.
    const peaks = await page.locator("#charts figcaption small").allInnerTexts();
    assert.match(peaks[0], new RegExp(`peak ${gib(plan.baseline_peak_bytes)}`));
    assert.match(peaks[1], new RegExp(`peak ${gib(plan.peak_bytes)}`));
    await close(page);
  }
});

test("the peak of the plain step is that of stats, in all categories", async () => {
  const page = await open(report("plain", "gpt2", "--budget", "100GiB"));
  const stats = json("stats", "gpt2");
  assert.equal(await figure(page, "peak-as-it-is"), stats.peak.total);
  await page.locator("#before").focus();
  await page.keyboard.press("p");
  const value = await page.locator("#alive p data").getAttribute("value");
  assert.equal(Number(value), stats.peak.total);
  const caption = await alive(page);
  assert.ok(caption.includes(stats.peak.at.op.replace(".default", "")), caption);
  await close(page);
});

const MARGIN = { left: 62, right: 12 };

// Points at a share of the width of a chart.
const pointAt = async (page, id, share) => {
  const box = await page.locator(`#${id}`).boundingBox();
  await page.mouse.move(box.x + MARGIN.left + (box.width - MARGIN.left - MARGIN.right) * share, box.y + box.height / 2);
  await page.waitForTimeout(150);
};

test("pointing says what is in memory there, in both charts, and who holds it", async () => {
  const page = await open(llama());
  const readout = page.locator("#readout");
  assert.equal(await readout.isVisible(), false);
  await pointAt(page, "before", 0.05);
  const early = await alive(page);
  await pointAt(page, "before", 0.25);
  const late = await alive(page);
  assert.match(early, /As it is: right after operator/);
  assert.notEqual(early, late);
  assert.match(late, /held by autograd for/);
  assert.match(late, /model\.layers\.\*/);
  // At the pointer: the operator of the panel, and the memory of both charts there.
  const said = await readout.innerText();
  const [, operator] = late.match(/of [\d,]+, (.*?),? [\d.]+ GiB in use/s);
  assert.ok(said.startsWith(operator.trim()), `${said} | ${operator}`);
  assert.match(said, /As it is\s+[\d.]+ GiB\s+With the plan for 40.00 GiB\s+[\d.]+ GiB/);
  const [plainBytes, plannedBytes] = await readout.locator("data").evaluateAll((all) => all.map((one) => Number(one.value)));
  assert.ok(plannedBytes < plainBytes);
  const total = await page.locator("#alive p data").getAttribute("value");
  assert.equal(plainBytes, Number(total));
  await pointAt(page, "after", 0.25);
  assert.match(await alive(page), /With the plan for 40.00 GiB: right after/);
  await page.getByRole("button", { name: "by module" }).click();
  assert.match(await alive(page), /in model\.layers\.\*/);
  await page.getByRole("button", { name: "by operator" }).click();
  // A click keeps the place; what is said at the pointer follows it.
  await page.locator("#before").click({ position: { x: 400, y: 100 } });
  await page.locator("#alive", { hasText: "As it is: right after" }).waitFor();
  const kept = await alive(page);
  const near = await readout.innerText();
  await pointAt(page, "before", 0.9);
  assert.equal(await alive(page), kept);
  assert.notEqual(await readout.innerText(), near);
  await page.mouse.move(5, 5);
  await page.waitForTimeout(50);
  assert.equal(await readout.isVisible(), false);
  await close(page);
});

test("the moments add up: the rows of a moment sum to its total", async () => {
  const page = await open(report("sum", "seed-transformer", "--budget", "1.6GiB"));
  for (const id of ["before", "after"]) {
    await page.locator(`#${id}`).focus();
    await page.keyboard.press("p");
    for (let step = 0; step < 5; step++) {
      await page.keyboard.press("Shift+ArrowLeft");
      await page.waitForTimeout(40);
      const total = Number(await page.locator("#alive p data").getAttribute("value"));
      const rows = await page.locator("#alive tbody data").evaluateAll((all) => all.map((one) => Number(one.value)));
      assert.ok(rows.length > 3);
      assert.equal(rows.reduce((a, b) => a + b, 0), total);
    }
  }
  await close(page);
});

test("dragging, keys and buttons zoom both charts", async () => {
  const page = await open(llama());
  const captions = () => page.locator("#charts figcaption small").allInnerTexts();
  const chart = page.locator("#before");
  const box = await chart.boundingBox();
  const whole = await captions();
  assert.match(whole[0], /^[\d,]+ operators run/);
  await page.mouse.move(box.x + box.width * 0.3, box.y + 100);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 100, { steps: 4 });
  await page.mouse.up();
  const zoomed = await captions();
  assert.match(zoomed[0], /^operators [\d,]+ to [\d,]+ of [\d,]+$/);
  assert.match(zoomed[1], /^operators [\d,]+ to [\d,]+ of [\d,]+$/);
  // Seen closely, what is at a place of one chart is there in the other.
  await chart.focus();
  await page.keyboard.press("p");
  for (let press = 0; press < 6; press++) await page.keyboard.press("+");
  for (const share of [0.1, 0.3, 0.6, 0.9]) {
    const seen = [];
    for (const id of ["before", "after"]) {
      await pointAt(page, id, share);
      seen.push([await page.locator("#readout strong").innerText(), ...await page.locator("#readout data").evaluateAll((all) => all.map((one) => one.value))]);
    }
    assert.deepEqual(seen[0], seen[1]);
  }
  await page.keyboard.press("Escape");
  await page.mouse.dblclick(box.x + box.width * 0.6, box.y + 100);
  assert.deepEqual(await captions(), whole);
  await page.locator("#after").focus();
  await page.keyboard.press("+");
  for (const caption of await captions()) assert.match(caption, /^operators/);
  await page.keyboard.press("0");
  assert.deepEqual(await captions(), whole);
  await page.getByRole("button", { name: "Go to the peak" }).click();
  for (const caption of await captions()) assert.match(caption, /^operators/);
  await page.getByRole("button", { name: "Show the whole step" }).click();
  // By time, the same moments are at other places.
  const byOperators = await page.locator("#after").screenshot();
  await page.getByRole("button", { name: "time", exact: true }).first().click();
  assert.deepEqual(await captions(), whole);
  assert.notDeepEqual(await page.locator("#after").screenshot(), byOperators);
  await close(page);
});

test("what is copied is what the command says", async () => {
  const page = await open(llama());
  const button = (name) => page.locator("#copies").getByRole("button", { name, exact: true });
  const command = await copied(page, button("Command"));
  assert.equal(command, "rematic plan llama-3-8b --batch 2 --world-size 8 --budget 40GiB");
  assert.equal(await copied(page, button("auto call")), 'plan = rematic.auto(model, batch, budget="40GiB", device="h100", world_size=8)');
  const file = join(directory, "copied.json");
  run(...command.split(" ").slice(1), "-o", file);
  assert.deepEqual(JSON.parse(await copied(page, button("Plan"))), JSON.parse(readFileSync(file, "utf8")));
  assert.equal(await copied(page, button("Python")), run(...command.split(" ").slice(1), "--emit", "python"));
  // At the slider's budget, all four are for that one.
  await page.locator("#slider").evaluate((input) => {
    input.value = 20;
    input.dispatchEvent(new Event("input"));
  });
  const other = await copied(page, button("Command"));
  assert.match(other, /^rematic plan llama-3-8b --batch 2 --world-size 8 --budget \d+$/);
  writeFileSync(file, await copied(page, button("Plan")));
  const replayed = json("replay", ...LLAMA, "--plan", file);
  assert.equal(replayed.replayed.peak_bytes, JSON.parse(readFileSync(file, "utf8")).peak_bytes);
  assert.ok(other.endsWith(` ${replayed.budget_bytes}`));
  assert.equal(await copied(page, button("Python")), run("replay", ...LLAMA, "--plan", file, "--emit", "python"));
  await close(page);
});

test("the verdict names the device, the GPUs and what is cheaper", async () => {
  const page = await open(llama());
  assert.match(await page.locator("#verdict").innerText(), /^Fits with a plan within 40\.00 GiB on each of 8 × NVIDIA H100/);
  const { remedies, pairs, together } = json("explain", ...LLAMA);
  const single = remedies.filter((one) => !["checkpointing", "sharding"].includes(one.kind) && one.numerics !== "approximate");
  const enough = [...single, ...pairs, together].filter((one) => one && one.peak_bytes <= 40 * 2 ** 30);
  const cheapest = enough.sort((a, b) => a.extra_ms - b.extra_ms)[0];
  assert.match(await page.locator("#cheaper").innerText(), new RegExp(`^Cheaper: .*: ${gib(cheapest.peak_bytes)} at \\+`));
  // The bar has what the allocator reserves, and the device.
  const plan = json("plan", ...LLAMA, ...BUDGET);
  const parts = await page.locator("#bar .legend data").evaluateAll((all) => all.map((one) => Number(one.value)));
  assert.ok(parts.includes(plan.memory.usable_bytes) && parts.includes(plan.memory.context_bytes) && parts.includes(plan.budget_bytes));
  // The curve has the device's memory, and shares of the step.
  assert.match(await page.locator("#curve text.device").textContent(), /^(→ )?h100: [\d.]+ GiB$/);
  assert.ok((await page.locator("#curve text.percent").count()) > 2);
  await close(page);
});

test("moving the budget shows that budget's plan", async () => {
  const page = await open(llama());
  const curve = [...json("curve", ...LLAMA, "--points", "50").points].reverse();
  const slider = page.locator("#slider");
  assert.equal(await slider.getAttribute("max"), "49");
  const seen = [];
  for (const index of [0, 20, 45]) {
    await slider.evaluate((input, value) => {
      input.value = value;
      input.dispatchEvent(new Event("input"));
    }, index);
    const text = await page.locator("#curve output").innerText();
    assert.ok(text.startsWith(`${gib(curve[index].budget_bytes)}: peak ${gib(curve[index].peak_bytes)}`), text);
    const chart = await page.locator("#charts figcaption small").nth(1).innerText();
    assert.ok(chart.endsWith(`peak ${gib(curve[index].peak_bytes)}`), chart);
    assert.equal(await page.locator("#alive .choice").isVisible(), false);
    // What is in memory at the peak adds up to it.
    const rows = await page.locator("#alive tbody data").evaluateAll((all) => all.map((one) => Number(one.value)));
    assert.equal(rows.reduce((a, b) => a + b, 0), curve[index].peak_bytes);
    seen.push(await page.locator("#plan").innerText());
  }
  assert.equal(new Set(seen).size, 3);
  await page.getByRole("button", { name: /^Back to/ }).click();
  assert.match(await page.locator("#charts figcaption").nth(1).innerText(), /40\.00 GiB/);
  await slider.focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator("#curve output").innerText(), /GiB: peak/);
  await close(page);
});

test("layers that are alike are one, with their operators and the plan's decisions", async () => {
  const page = await open(llama());
  const plan = json("plan", ...LLAMA, ...BUDGET);
  const named = (region) => region.module.split(".").slice(1).join(".");
  // The last of the plan's regions are alike.
  const last = plan.regions[plan.regions.length - 1];
  const folded = page.locator(".icicle button").filter({ hasText: /^\d+-31 / });
  assert.equal(await folded.count(), 1);
  const title = await folded.getAttribute("title");
  const [, first, many] = title.match(/^model\.layers\.(\d+)-31 \((\d+)× LlamaDecoderLayer\)/);
  assert.equal(Number(many), 32 - Number(first));
  const region = plan.regions.find((one) => named(one) === `model.layers.${first}`);
  assert.deepEqual(region.policy, last.policy);
  await folded.click();
  assert.ok((await page.locator("#operators .caption").innerText()).startsWith(`model.layers.${first}-31 (LlamaDecoderLayer): ${many} alike, each with `));
  await page.getByRole("button", { name: /^Show [\d,]+ views and empty operators$/ }).click();
  const cells = await page.locator("#operators tbody tr td:nth-child(4)").allInnerTexts();
  const words = { save: "saved", offload: "offloaded", recompute: "recomputed", skip: "skipped" };
  assert.deepEqual(cells, region.policy.map(({ decision }) => words[decision]));
  assert.ok(cells.includes("skipped"), cells.join(" "));
  const names = await page.locator("#operators tbody tr td:nth-child(2)").allInnerTexts();
  assert.deepEqual(names, region.policy.map(({ op }) => op.replace(/\.default$/, "")));
  await page.getByRole("button", { name: "Hide views and empty operators" }).click();
  const shown = await page.locator("#operators tbody tr td:nth-child(2)").allInnerTexts();
  assert.ok(shown.length < names.length && !shown.includes("view") && shown.includes("mm"), shown.join(" "));
  // Freed bytes are those of the plan.
  await page.getByRole("button", { name: "freed by the plan" }).click();
  assert.ok((await folded.getAttribute("title")).includes(`each ${gib(region.freed_bytes)}`));
  // The keyboard goes down into it.
  await page.getByRole("button", { name: "activations" }).click();
  await folded.click();
  await page.keyboard.press("Enter");
  assert.ok((await page.locator(".path").innerText()).includes(`› ${first} `));
  await page.keyboard.press("ArrowDown");
  assert.ok((await page.locator("#operators .caption").innerText()).startsWith(`model.layers.${first}.`));
  await close(page);
});

test("the keyboard reaches every part, and the focus is not lost", async () => {
  const page = await open(llama());
  const focused = () => page.evaluate(() => document.activeElement.closest("#charts, #curve, #copies, #alive, #plan, #modules, #operators")?.id);
  const seen = new Set();
  for (let press = 0; press < 60; press++) {
    await page.keyboard.press("Tab");
    seen.add(await focused());
  }
  for (const part of ["charts", "curve", "copies", "alive", "plan", "modules", "operators"]) assert.ok(seen.has(part), part);
  // A module that another measure does not draw leaves its place to the one around it.
  // The cell is a few pixels wide, so that a pointer may miss it.
  await page.locator('.icicle button[title*=".mlp.gate_proj "]').first().dispatchEvent("click");
  assert.match(await page.locator("#operators .caption").innerText(), /^model\.layers\.\d+\.mlp\.gate_proj /);
  await page.getByRole("button", { name: "freed by the plan" }).click();
  assert.equal(await page.locator('.icicle button[tabindex="0"]').count(), 1);
  await page.locator('.icicle button[tabindex="0"]').focus();
  await page.keyboard.press("Enter");
  await page.locator(".path button").first().click();
  assert.equal(await focused(), "modules");
  await page.getByRole("button", { name: /^Show [\d,]+ views/ }).click();
  assert.equal(await focused(), "operators");
  await close(page);
});

test("a given plan is shown as it is", async () => {
  const plan = join(directory, "plan.json");
  run("plan", "seed-transformer", "--budget", "1.6GiB", "-o", plan);
  const page = await open(report("given", "seed-transformer", "--plan", plan, "--budget", "10GiB"));
  assert.match(await page.locator("#verdict").innerText(), /^Fits with a plan within 10\.00 GiB/);
  assert.equal(await figure(page, "peak-with-the-plan"), JSON.parse(readFileSync(plan, "utf8")).peak_bytes);
  await close(page);
});

test("a hostile trace is only text", async () => {
  const trace = join(directory, "hostile.rmt");
  run("trace", "seed-transformer", "--layers", "2", "-o", trace);
  const document = JSON.parse(readFileSync(trace, "utf8"));
  document.origin.model = EVIL;
  document.origin.options = [[EVIL, EVIL]];
  document.names = document.names.map((name) => `${EVIL}${name}`);
  const rename = (value) => {
    if (Array.isArray(value)) value.forEach(rename);
    else if (value && typeof value === "object") {
      for (const key of ["class", "name"]) {
        if (typeof value[key] === "string" && value[key]) value[key] = EVIL.replaceAll(".", "_") + value[key];
      }
      Object.values(value).forEach(rename);
    }
  };
  rename(document.modules);
  writeFileSync(trace, JSON.stringify(document));
  const page = await open(report("hostile", trace, "--budget", "1GiB"));
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("h1").innerText(), EVIL);
  assert.ok((await page.locator("#operators").innerText()).includes("<img src=x"));
  assert.equal(await page.locator("img").count(), 0);
  await page.locator("#before").focus();
  await page.keyboard.press("p");
  await page.waitForTimeout(50);
  assert.ok((await alive(page)).includes("</script>"));
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `${overflow} px too wide`);
  await close(page);
});

test("a step in which nothing happens has a page too", async () => {
  const trace = join(directory, "nothing.rmt");
  run("trace", "seed-transformer", "--layers", "1", "-o", trace);
  const document = JSON.parse(readFileSync(trace, "utf8"));
  for (const key of Object.keys(document)) if (Array.isArray(document[key])) document[key] = [];
  writeFileSync(trace, JSON.stringify(document));
  const page = await open(report("nothing", trace));
  assert.doesNotMatch(await page.locator("body").innerText(), /NaN|undefined|Infinity/);
  assert.equal(await page.locator("#memory").isVisible(), false);
  await close(page);
});

test("a page can be printed", async () => {
  const page = await open(report("print", "seed-transformer", "--budget", "1.6GiB"));
  await page.emulateMedia({ media: "print" });
  assert.equal(await page.locator("#slider").isVisible(), false);
  assert.equal(await page.locator("#before").isVisible(), true);
  const pdf = await page.pdf({ format: "A4" });
  assert.equal(pdf.subarray(0, 5).toString(), "%PDF-");
  if (screenshots) writeFileSync(join(screenshots, "print.pdf"), pdf);
  await close(page);
});

test("large reports stay small and quick", async () => {
  const large = ["llama-3-405b", "--layers", "500", "--world-size", "1024", "--whole", "--only", "*.mlp"];
  const file = report("large", ...large, "--budget", "700GiB");
  assert.ok(statSync(file).size < 6e6, `${statSync(file).size} bytes`);
  const page = await open(file);
  const ops = await page.locator("#charts figcaption small").first().innerText();
  assert.ok(Number(ops.split(" ")[0].replaceAll(",", "")) > 1e5, ops);
  assert.ok((await page.locator("#plan tbody tr").count()) > 0);
  // A hover answers at once; a busy machine may take a little longer.
  const slowest = await page.evaluate(async () => {
    const canvas = document.getElementById("before");
    const box = canvas.getBoundingClientRect();
    let slowest = 0;
    for (let share = 0.1; share < 0.9; share += 0.1) {
      const began = performance.now();
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x + box.width * share, clientY: box.y + 50 }));
      await new Promise(requestAnimationFrame);
      await new Promise(requestAnimationFrame);
      slowest = Math.max(slowest, performance.now() - began);
    }
    return slowest;
  });
  assert.ok(slowest < 400, `${slowest} ms`);
  await close(page);
});

// A recorded snapshot, unpacked.
const snapshot = (name) => {
  const packed = fileURLToPath(new URL(`../../crates/rematic-snapshot/tests/snapshots/${name}.pickle.zst`, import.meta.url));
  const file = join(directory, `${name}.pickle`);
  execFileSync("zstd", ["-q", "-d", "-f", packed, "-o", file]);
  return file;
};

// How many colours a canvas shows, and the share of it that is painted.
const painted = (page, id) => page.locator(`#${id}`).evaluate(async (canvas) => {
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const set = pixels.filter((pixel) => pixel >>> 24);
  return { colors: new Set(set).size, share: set.length / pixels.length };
});

test("a snapshot's page draws memory over time and the segments", async () => {
  for (const name of ["runs-out", "fragments", "step"]) {
    const file = snapshot(name);
    const told = json("explain", file);
    const page = await open(report(`snapshot-${name}`, file));
    assert.equal(await figure(page, "allocated"), told.moment.allocated_bytes);
    assert.equal(await figure(page, "reserved"), told.moment.reserved_bytes);
    assert.equal(await figure(page, "highest-reserved"), told.reserved_peak_bytes);
    assert.match(await page.locator("#verdict").innerText(), told.failure ? /^Out of memory: / : /^The peak: /);
    const settings = await page.locator("#trials tbody tr td:first-child, #trials tbody tr th").allInnerTexts();
    assert.deepEqual(settings, told.trials.map((trial) => trial.settings));
    for (const id of ["time", "map"]) {
      const { colors, share } = await painted(page, id);
      assert.ok(colors > 1 && share > 0.02, `${name}, ${id}: ${colors} colours on ${share} of it`);
    }
    // Both are read with the keyboard, and with the mouse.
    await page.locator("#time").focus();
    await page.keyboard.press("ArrowLeft");
    assert.match(await page.locator("#time-detail").innerText(), /^After event [\d,]+: .* allocated, .* reserved\.$/);
    await page.locator("#map").hover({ position: { x: 1, y: 1 } });
    assert.match(await page.locator("#map-detail").innerText(), /segment.*, stream 0: /);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${name} is ${overflow} px too wide`);
    await close(page);
  }
});

test("a snapshot whose settings are not modelled says that none were tried", async () => {
  const file = snapshot("expandable");
  const changed = readFileSync(file, "latin1").replace("expandable_segments:True", "backend:cudaMallocAsync,");
  writeFileSync(file, changed, "latin1");
  const page = await open(report("snapshot-async", file));
  assert.equal(await page.locator("#trials-section").isVisible(), false);
  assert.match(await page.locator("#basis").innerText(), /So no other settings can be tried\./);
  await close(page);
});

test("no page is wider than its window, light or dark, wide or narrow", async () => {
  const files = {
    "seed-transformer": report("look-seed", "seed-transformer", "--budget", "1.6GiB"),
    "llama-3-8b": llama(),
    infeasible: report("look-infeasible", "seed-transformer", "--budget", "0.5GiB"),
  };
  for (const [name, file] of Object.entries(files)) {
    for (const size of WINDOWS) {
      for (const colorScheme of SCHEMES) {
        const page = await open(file, { viewport: { width: size[0], height: size[1] }, colorScheme });
        await looksWell(page, name, size, colorScheme, screenshots);
        await close(page);
      }
    }
  }
});
