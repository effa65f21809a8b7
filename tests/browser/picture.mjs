// A picture of a report: its head, its verdict, and memory over the step.

import assert from "node:assert/strict";
import { statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { chromium } = createRequire(join(process.env.PLAYWRIGHT, "index.js"))("playwright-core");
const { REPORT: report, PICTURE: picture } = process.env;
const WIDTH = 1280;
const MOST_BYTES = 200_000;

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: WIDTH, height: 800 } });
await page.goto(`file://${report}`);
const chart = await page.locator("#after").boundingBox();
await page.mouse.move(chart.x + chart.width * 0.42, chart.y + chart.height * 0.2);
await page.waitForTimeout(300);
const charts = await page.locator("#charts").boundingBox();
await page.screenshot({ path: picture, fullPage: true, clip: { x: 0, y: 0, width: WIDTH, height: Math.ceil(charts.y + charts.height) + 8 } });
await browser.close();

const { size } = statSync(picture);
assert.ok(size < MOST_BYTES, `${picture} has ${size} bytes`);
