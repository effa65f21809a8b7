// Times the answers of `rematic explore` for llama-3-8b: 60 changes of batch, sequence, GPUs and device, in processor time, which a
// busy machine does not change, and in time. Run with `node bench/explore.mjs target/release/rematic`.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";

const TICK_MS = 10;
const child = spawn(process.argv[2], ["explore", "--no-open", "llama-3-8b"], { stdio: ["pipe", "pipe", "inherit"] });
const [said] = await once(child.stdout.setEncoding("utf8"), "data");
const address = said.split("\n")[0];

// What the kernel has counted for the process, in and out of it.
const processor = () => {
  const fields = readFileSync(`/proc/${child.pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS;
};
const pick = (all, at) => all[at % all.length];
const took = { step: [], draft: [] };
for (let change = 0; change < 60; change++) {
  const controls = {
    model: "llama-3-8b", batch: pick(["1", "2", "3", "4", "6", "8"], change), seq: pick(["4096", "2048", "8192", "4000"], change >> 1),
    gpus: pick(["1", "8", "4", "16"], change >> 2), device: pick(["h100", "a100-80", "h200"], change >> 3),
  };
  for (const stage of ["step", "draft"]) {
    const [spent, began] = [processor(), performance.now()];
    const reply = await fetch(`${address}answer`, { method: "POST", body: JSON.stringify({ stage, tab: "1", number: change + 1, controls }) });
    const answer = await reply.json();
    took[stage].push([processor() - spent, performance.now() - began]);
    if (answer.is_final) break;
  }
}
for (const [stage, name] of [["step", "the step as it is"], ["draft", "a first plan"]]) {
  const at = (column, share) => took[stage].map((row) => row[column]).sort((a, b) => a - b)[Math.floor(took[stage].length * share)].toFixed(0);
  console.log(`${name}, ${took[stage].length} times: processor ${at(0, 0.5)} ms, 95 % within ${at(0, 0.95)} ms; in all ${at(1, 0.5)} ms, 95 % within ${at(1, 0.95)} ms`);
}
child.stdin.end();
