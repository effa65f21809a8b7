// A browser whose pages may not say anything on the console, nor ask for anything but themselves.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { chromium } = createRequire(join(process.env.PLAYWRIGHT, "index.js"))("playwright-core");

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
export const WINDOWS = [[1280, 800], [390, 844]];
export const SCHEMES = ["light", "dark"];

export const launch = () => chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS });

// `own` says which requests are the page's own.
export const open = async (browser, address, own, options = {}) => {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, ...options });
  page.complaints = [];
  page.on("console", (message) => page.complaints.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => page.complaints.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    page.complaints.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!own(request.url()) && !request.url().startsWith("data:")) page.complaints.push(`request: ${request.url()}`);
  });
  await page.goto(address);
  return page;
};

export const close = async (page) => {
  assert.deepEqual(page.complaints, []);
  await page.close();
};

export const figure = (page, name) => page.locator(`#figure-${name}`).getAttribute("value").then(Number);

// What the next copy button puts on the clipboard; the page's own clipboard is not asked for.
export const copied = async (page, button) => {
  await page.evaluate(() => {
    window.copied = null;
    Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async (text) => { window.copied = text; } } });
  });
  await button.click();
  await page.waitForFunction(() => window.copied != null);
  return page.evaluate(() => window.copied);
};

// The paper has the colour of the scheme, nothing sticks out at the side, and there is a picture if one was asked for.
export const looksWell = async (page, name, [width], scheme, screenshots) => {
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `${name} at ${width} is ${overflow} px too wide`);
  const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(paper, scheme === "light" ? "rgb(255, 255, 255)" : "rgb(20, 23, 28)");
  if (!screenshots) return;
  mkdirSync(screenshots, { recursive: true });
  await page.screenshot({ path: join(screenshots, `${name}-${width}-${scheme}.png`), fullPage: true });
};

export const gib = (bytes) => {
  let [value, unit] = [bytes, "B"];
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1024) break;
    [value, unit] = [value / 1024, larger];
  }
  return unit === "B" ? `${bytes} B` : `${value.toFixed(2)} ${unit}`;
};
