// `rematic explore` in a real browser: its controls are answered as the command line answers, and nobody else is let in.

import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { request } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { SCHEMES, WINDOWS, close, copied, figure, launch, looksWell, open } from "./page.mjs";

const { RUST_BINARY: rematic, REPORTS: directory, SCREENSHOTS: screenshots } = process.env;
// A blink; a busy machine may take longer for some.
const BLINK_MS = 150;
const BUSY_MS = 600;

const json = (...args) => {
  const { status, stdout, stderr } = spawnSync(rematic, [...args, "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
  assert.ok(status === 0 || status === 3, stderr);
  return JSON.parse(stdout);
};

// Starts it; its input is a pipe, and closing that ends it.
const start = async (...args) => {
  const child = spawn(rematic, ["explore", "--no-open", ...args], { stdio: ["pipe", "pipe", "inherit"] });
  const [said] = await once(child.stdout.setEncoding("utf8"), "data");
  return { child, address: said.split("\n")[0] };
};

const end = async ({ child }) => {
  child.stdin.end();
  const [code] = child.exitCode == null ? await once(child, "exit") : [child.exitCode];
  assert.equal(code, 0);
};

let browser;
let llama;
before(async () => {
  [browser, llama] = await Promise.all([launch(), start("llama-3-8b")]);
});
after(async () => {
  await browser.close();
  await end(llama);
});

const visit = (address = llama.address, options = {}) => open(browser, address, (url) => url.startsWith(address), options);
const stage = (page) => page.evaluate(() => document.body.dataset.shown?.split(" ")[1]);
const settled = (page, ...stages) => page.waitForFunction(
  (stages) => stages.includes(document.body.dataset.shown?.split(" ")[1]), stages.length ? stages : ["done", "refused"]);

// Changes controls as a person does, and waits for all of the answer.
const choose = async (page, controls) => {
  await page.evaluate((controls) => {
    delete document.body.dataset.shown;
    for (const [name, value] of Object.entries(controls)) document.getElementById(`control-${name}`).value = value;
    document.getElementById("controls").dispatchEvent(new Event("input", { bubbles: true }));
  }, controls);
  await settled(page);
};

const ask = (address, headers, body) => new Promise((resolve, reject) => {
  const [, hostname, port, path] = address.match(/^http:\/\/([^:]+):(\d+)(.*)$/);
  const asked = request({ hostname, port, path, headers, method: body ? "POST" : "GET", setHost: false }, (reply) => {
    let text = "";
    reply.setEncoding("utf8").on("data", (part) => { text += part; }).on("end", () => resolve({ status: reply.statusCode, headers: reply.headers, text }));
  });
  asked.on("error", reject);
  asked.end(body);
});

test("nobody is let in without the token, under another host's name, or from another page", async () => {
  const { address } = llama;
  const { host, port } = new URL(address);
  const token = new URL(address).pathname.split("/")[1];
  assert.match(token, /^[0-9a-f]{32}$/);
  assert.equal(new URL(address).hostname, "127.0.0.1");
  const status = async (path, headers) => (await ask(`http://127.0.0.1:${port}${path}`, headers)).status;
  assert.equal(await status(`/${token}/`, { host }), 200);
  assert.equal(await status(`/${token}/`, { host: `localhost:${port}` }), 200);
  assert.equal(await status(`/${token}/other`, { host }), 404);
  for (const path of ["/", "/answer", `/${token}`, `/${token.slice(1)}/`, `/${"0".repeat(32)}/`, "//", `/${token}x/`]) {
    assert.equal(await status(path, { host }), 403, path);
  }
  for (const foreign of [undefined, "evil.example", `evil.example:${port}`, "127.0.0.1", `127.0.0.1:${port}.evil.example`, "127.0.0.1:1", ""]) {
    assert.equal(await status(`/${token}/`, foreign == null ? {} : { host: foreign }), 403, foreign);
  }
  for (const origin of ["http://evil.example", "null", `https://${host}`]) {
    const { status } = await ask(`${address}answer`, { host, origin }, "{}");
    assert.equal(status, 403, origin);
  }
  const { headers, text } = await ask(address, { host });
  assert.match(headers["content-security-policy"], /default-src 'none'.*connect-src 'self'/);
  assert.equal(headers["access-control-allow-origin"], undefined);
  assert.doesNotMatch(text, new RegExp(token));
  // Nobody but this machine can reach it.
  const listening = execFileSync("cat", ["/proc/net/tcp"], { encoding: "utf8" }).split("\n")
    .filter((line) => line.includes(`:${Number(port).toString(16).toUpperCase().padStart(4, "0")} 00000000:0000 0A`));
  assert.deepEqual(listening.map((line) => line.trim().split(/\s+/)[1].split(":")[0]), ["0100007F"]);
});

test("what it is not asked properly, it says kindly", async () => {
  const { address } = llama;
  const { host } = new URL(address);
  for (const body of ["", "{", "[]", "null", "{}", '{"stage":"all","tab":"1","number":1,"controls":{"model":"gpt2"}}',
    '{"stage":"step","tab":"1","number":1,"controls":{"model":"/etc/passwd"}}', "x".repeat(1 << 20)]) {
    const { status, text } = await ask(`${address}answer`, { host, "content-length": body.length }, body || " ");
    assert.equal(status, 200, body.slice(0, 80));
    assert.match(JSON.parse(text).error, /load it again/, body.slice(0, 80));
  }
});

test("the answers are those of the command that it gives", async () => {
  const page = await visit();
  await settled(page);
  for (const controls of [
    { gpus: "8" },
    { batch: "4", seq: "8192", device: "a100-80" },
    { model: "gpt2", batch: "8", seq: "1024", gpus: "1", budget: "2GiB" },
    { model: "gpt2", batch: "8", seq: "", gpus: "4", replicate: "2", reshard: "no", optimizer: "sgd", device: "rtx-4090", budget: "12GiB" },
  ]) {
    await choose(page, controls);
    const command = await copied(page, page.locator("#command .copy"));
    const told = json(...command.split(" ").slice(1));
    const verdict = await page.locator("#verdict").innerText();
    const words = { fits: /^Fits as it is/, planned: /^Fits with a plan/, infeasible: /^Does not fit/ };
    assert.match(verdict, words[told.outcome], command);
    assert.equal(await figure(page, "peak"), told.peak_bytes, command);
    assert.equal(await figure(page, "step-time"), told.planned_step_ms, command);
    const device = await page.locator("#bar .legend .line data").first().getAttribute("value");
    assert.equal(Number(device), told.memory.usable_bytes);
    assert.ok((await page.locator("#curve circle").count()) > 10, command);
    assert.equal(await page.locator("#plan tbody tr").first().isVisible(), told.outcome !== "fits");
  }
  await close(page);
});

test("controls halve, double, and stay after loading again", async () => {
  const page = await visit();
  await settled(page);
  const batch = page.locator("#control-batch");
  await page.getByRole("button", { name: "Double batch per gpu" }).click();
  assert.equal(await batch.inputValue(), "2");
  await page.getByRole("button", { name: "Double batch per gpu" }).click();
  await page.getByRole("button", { name: "Halve batch per gpu" }).click();
  assert.equal(await batch.inputValue(), "2");
  await page.locator("#control-gpus").fill("8");
  await page.locator("#control-tp").fill("2");
  await page.waitForFunction(() => document.querySelector("#command code")?.textContent.includes("--tp 2"));
  assert.equal(await page.locator("#control-fsdp").innerText(), "4");
  assert.match(await page.locator("#command code").innerText(), /^rematic plan llama-3-8b --batch 2 --tp 2 --fsdp 4$/);
  await page.reload();
  await settled(page);
  assert.match(await page.locator("#command code").innerText(), /--batch 2 --tp 2 --fsdp 4$/);
  // A click on the curve plans for the budget there.
  await page.locator("#curve svg").click({ position: { x: 260, y: 120 } });
  await settled(page, "done");
  assert.match(await page.locator("#control-budget").inputValue(), /GiB$/);
  assert.match(await page.locator("#verdict").innerText(), /GiB on each of 8/);
  await close(page);
});

test("what cannot be is said kindly, and the last answer stays", async () => {
  const page = await visit();
  await settled(page);
  const peak = await figure(page, "peak");
  for (const [controls, words] of [
    [{ gpus: "8", tp: "3" }, /^8 GPUs cannot be divided evenly into groups of 3/],
    [{ gpus: "5", tp: "5" }, /heads|divide/],
    [{ gpus: "1", tp: "1", budget: "much" }, /^invalid value 'much' for '--budget <SIZE>'/],
    [{ budget: "0" }, /budget/],
    [{ budget: "", batch: "-3" }, /give a whole number/],
    [{ batch: "99999999999999999999" }, /give a whole number/],
    [{ batch: "", gpus: "x" }, /^GPUs: `x` is not a number of GPUs/],
  ]) {
    await choose(page, controls);
    assert.equal(await stage(page), "refused", JSON.stringify(controls));
    assert.match(await page.locator("#refusal").innerText(), words);
    assert.doesNotMatch(await page.locator("#refusal").innerText(), /--help|panicked/);
    assert.equal(await figure(page, "peak"), peak);
  }
  await choose(page, { gpus: "1", batch: "1" });
  assert.equal(await page.locator("#refusal").isVisible(), false);
  await close(page);
});

test("a captured step has fewer controls, and says why", async () => {
  const trace = join(directory, "captured.rmt");
  execFileSync(rematic, ["trace", "gpt2", "--batch", "4", "-o", trace]);
  const own = await start(trace);
  const page = await visit(own.address);
  await settled(page);
  for (const name of ["batch", "seq", "precision", "optimizer", "tp"]) {
    assert.equal(await page.locator(`#control-${name}`).isDisabled(), true, name);
    assert.match(await page.locator(`#why-${name}`).innerText(), /captured step has its own/);
  }
  assert.equal(await figure(page, "peak"), json("plan", trace).peak_bytes);
  await choose(page, { device: "rtx-4090", gpus: "2" });
  const command = await page.locator("#command code").innerText();
  assert.equal(command, `rematic plan ${trace} --device rtx-4090 --fsdp 2`);
  assert.equal(await figure(page, "peak"), json(...command.split(" ").slice(1)).peak_bytes);
  await choose(page, { model: "gpt2-medium" });
  assert.equal(await page.locator("#control-batch").isDisabled(), false);
  await close(page);
  await end(own);
});

test("the newest question wins, and changes are answered within a blink", async () => {
  const page = await visit();
  await settled(page);
  const took = await page.evaluate(async () => {
    const took = [];
    const set = (name, value) => { document.getElementById(`control-${name}`).value = value; };
    const pick = (all, at) => all[at % all.length];
    for (let change = 0; change < 60; change++) {
      set("batch", pick(["1", "2", "3", "4", "6", "8"], change));
      set("seq", pick(["4096", "2048", "8192", "4000"], change >> 1));
      set("gpus", pick(["1", "8", "4", "16"], change >> 2));
      set("device", pick(["h100", "a100-80", "h200"], change >> 3));
      const before = document.body.dataset.shown;
      const number = Number(before.split(" ")[0]);
      const began = performance.now();
      document.getElementById("controls").dispatchEvent(new Event("input", { bubbles: true }));
      // The next change comes while the planner still works on this one.
      await new Promise((resolve) => {
        const look = () => {
          const [shown, stage] = document.body.dataset.shown.split(" ");
          if (Number(shown) > number && stage) resolve();
          else requestAnimationFrame(look);
        };
        look();
      });
      took.push(performance.now() - began);
    }
    return took.sort((a, b) => a - b);
  });
  const at = (share) => took[Math.floor(took.length * share)];
  console.log(`explore: half of 60 changes within ${at(0.5).toFixed(0)} ms, 95 % within ${at(0.95).toFixed(0)} ms (a blink is ${BLINK_MS})`);
  assert.ok(at(0.95) < BUSY_MS, `${at(0.95)} ms`);
  await settled(page);
  const told = json(...(await page.locator("#command code").innerText()).split(" ").slice(1));
  assert.equal(await figure(page, "peak"), told.peak_bytes);
  await close(page);
});

test("it ends with its input, and a page without it says so", async () => {
  const own = await start("gpt2");
  const page = await visit(own.address);
  await settled(page);
  await end(own);
  await page.locator("#control-seq").fill("128");
  await page.locator("#refusal").waitFor();
  assert.match(await page.locator("#refusal").innerText(), /has stopped. Start `rematic explore` again/);
  await page.close();
});

test("it looks well, light or dark, wide or narrow", async () => {
  for (const size of WINDOWS) {
    for (const colorScheme of SCHEMES) {
      const page = await visit(llama.address, { viewport: { width: size[0], height: size[1] }, colorScheme });
      await settled(page);
      await choose(page, { batch: "4", seq: "8192", gpus: "8" });
      await looksWell(page, "explore", size, colorScheme, screenshots);
      await choose(page, { gpus: "8", tp: "3" });
      await looksWell(page, "explore-refused", size, colorScheme, screenshots);
      await close(page);
    }
  }
});
