// Goal: the first paint does not depend on how many keys there are. The Rust test has made them.

import { check, launch } from "./page.mjs";

const { admin, token, keys, most } = JSON.parse(process.env.PLACE);
const base = `http://${admin}/`;
const { window: open, end } = await launch();
const { context, page } = await open({ allowed: [admin] });
await page.goto(base);
await page.getByLabel("Admin token").fill(token);
await page.getByRole("button", { name: "Sign in" }).click();
await page.locator(".tile").first().waitFor();
// When the first row of the list stands in the page, in milliseconds since its navigation.
await context.addInitScript(() => {
  new MutationObserver((_, observer) => {
    if (!document.querySelector("main tbody tr")) return;
    window.firstRow = performance.now();
    observer.disconnect();
  }).observe(document, { childList: true, subtree: true });
});
const times = [];
for (let round = 0; round < 5; round += 1) {
  const fresh = await context.newPage();
  await fresh.goto(`${base}#/keys`);
  await fresh.locator("main tbody tr").first().waitFor();
  times.push(await fresh.evaluate(() => ({
    paint: Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1),
    row: Math.round(window.firstRow),
    rows: document.querySelectorAll("main tbody tr").length,
  })));
  await fresh.close();
}
check("a page has 50 rows", times.every((one) => one.rows === 50), times);
const middle = (name) => times.map((one) => one[name]).sort((a, b) => a - b)[2];
console.log(`${keys} keys: first paint ${middle("paint")} ms, first row ${middle("row")} ms (medians of 5)`);
if (most) check(`both under ${most} ms`, middle("paint") < most && middle("row") < most, times);
await end();
