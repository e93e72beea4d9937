// What the browser tests share: a browser that notes what must not happen, and checks with names.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** Nothing takes longer than this; it ends what hangs. */
export const DEADLINE = 60_000;

export function check(what, holds, seen) {
  if (!holds) throw new Error(`${what}${seen === undefined ? "" : `: ${JSON.stringify(seen)}`}`);
  console.log(`ok  ${what}`);
}

/** Looks again and again until `look` is true. */
export async function until(what, look) {
  const end = Date.now() + DEADLINE;
  let seen;
  while (Date.now() < end) {
    seen = await look();
    if (seen) return check(what, true);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`waited ${DEADLINE} ms: ${what}`);
}

export async function launch() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  const wrongs = [];
  return {
    browser,
    /** A window of its own, with cookies of its own. */
    async window({ allowed, width = 1280, height = 800, colorScheme = "light" }) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme, bypassCSP: false });
      context.setDefaultTimeout(DEADLINE);
      const page = await context.newPage();
      page.on("request", (request) => {
        const { host, protocol } = new URL(request.url());
        if (protocol.startsWith("http") && !allowed.includes(host)) wrongs.push(`asked ${request.url()}`);
      });
      page.on("pageerror", (error) => wrongs.push(`error ${error.message}`));
      page.on("dialog", (dialog) => { wrongs.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
      page.on("console", (message) => {
        if (message.text().includes("Content Security Policy")) wrongs.push(message.text());
      });
      return { context, page };
    },
    /** Ends it; whatever must not have happened fails the test. */
    async end() {
      await browser.close();
      check("no other host, no error, no dialog, nothing that the policy had to stop", wrongs.length === 0, wrongs);
    },
  };
}

/** No finding of axe-core. */
export async function accessible(page, what) {
  const found = await page.evaluate(`(() => { ${axe}; return axe.run(document, { resultTypes: ["violations"] }); })()`);
  const findings = found.violations
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
  check(`${what} is accessible (${found.passes.length} rules passed)`, findings.length === 0, findings);
}

export async function fits(page, what) {
  const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  check(`${what} fits a window of ${window} px`, wide <= window, wide);
}

/** Nothing of a table or of a fact is cut off: neither by an ellipsis nor by the edge of its box. */
export async function whole(page, what) {
  const cut = await page.evaluate(() => [...document.querySelectorAll("main td, main th, main dd, main .tile, nav a, main .scroll")]
    .filter((one) => one.checkVisibility() && one.clientWidth > 1 && one.scrollWidth > one.clientWidth + 1)
    .map((one) => `${one.tagName} ${one.className}: ${one.textContent.slice(0, 60)}`));
  check(`nothing of ${what} is cut off`, cut.length === 0, cut);
}

/** The page as it looks in a wide and in a narrow window, light and dark, where somebody wants to look at that:
 * `GALLERY` names the folder. */
export async function gallery(page, name) {
  if (!process.env.GALLERY) return;
  const was = page.viewportSize();
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const width of [400, 1600]) {
      await page.setViewportSize({ width, height: 900 });
      await page.waitForTimeout(400);
      await page.screenshot({ path: `${process.env.GALLERY}/${name}-${width}-${colorScheme}.png`, fullPage: true });
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize(was);
}

/** A picture for the documents, where they are being written. */
export async function picture(page, name, height = 760) {
  if (!process.env.PICTURES) return;
  const was = page.viewportSize();
  await page.setViewportSize({ width: 1120, height });
  await page.waitForTimeout(300);
  await page.screenshot({ path: `${process.env.PICTURES}/${name}.png` });
  await page.setViewportSize(was);
}
