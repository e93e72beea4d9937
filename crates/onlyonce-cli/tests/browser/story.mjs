// Goal: a visitor sees the difference. The demo was started by the Rust test; both numbers on the page
// are the API's own ledgers, and that test asks the API itself afterwards.

import { accessible, check, fits, gallery, launch, picture, until } from "./page.mjs";

const { page: place } = JSON.parse(process.env.PLACE);
const { window: open, end } = await launch();
const { page } = await open({ allowed: [place], height: 900 });
await page.goto(`http://${place}/`);
await page.getByRole("heading", { name: "With OnlyOnce", exact: true }).waitFor();
await accessible(page, "the story");

const numbers = async () => {
  const [without, with_] = await page.locator("[data-charges]").allTextContents();
  return { without: Number(without), with: Number(with_) };
};
const state = async () => (await fetch(`http://${place}/state`)).json();
async function press(name) {
  const before = (await state()).with.lines.length;
  await page.getByRole("button", { name, exact: true }).click();
  await until(`${name}: it is played`, async () => {
    const now = await state();
    return !now.busy && now.with.lines.length > before;
  });
  // The page looks every so often by itself.
  await until("the page has it", async () => {
    const now = await state();
    const shown = await numbers();
    return shown.with === now.with.charges && shown.without === now.without.charges;
  });
  return numbers();
}

check("there is nothing to retry yet", await page.getByRole("button", { name: "Retry", exact: true }).isDisabled());
let seen = await press("Pay");
check("a purchase is charged once on both sides", seen.with === 1 && seen.without === 1, seen);
seen = await press("Retry");
check("its retry is charged again without, and not with", seen.with === 1 && seen.without === 2, seen);
seen = await press("Double-click 50 times");
check("50 clicks: 1 charge with OnlyOnce, more without", seen.with === 1 && seen.without > 1, seen);
await until("the buttons are there again", () => page.getByRole("button", { name: "Pay", exact: true }).isEnabled());
seen = await press("Lose the answer");
check("the answer is lost: one charge on both sides", seen.with === 1 && seen.without === 1, seen);
await page.getByText(/The shop does not know whether it was charged\. Now press Retry\./).waitFor();
seen = await press("Retry");
check("and the retry charges again without OnlyOnce only", seen.with === 1 && seen.without === 2, seen);
seen = await press("Provider hangs up");
check("the provider hangs up: one charge", seen.with === 1 && seen.without === 2, seen);
await page.getByRole("button", { name: "Look it up and resolve" }).click();
await page.getByText("The ledger has it: resolved as completed").waitFor();
await page.locator("li.replayed").last().waitFor();
seen = await press("Pause the gateway");
check("the gateway freezes: one charge", seen.with === 1 && seen.without === 2, seen);
// --- The lease of a killed gateway is seen to run, and what the gateway finds out by itself is a success.
const lease = page.getByText(/The killed gateway reserved the key with a lease, which ends in \d+ s/);
let over = false;
const killed = press("Kill the gateway").finally(() => { over = true; });
let seconds = null;
while (!over && seconds === null) {
  await page.waitForTimeout(50);
  if (await lease.isVisible()) seconds = await page.locator("[data-countdown]").textContent({ timeout: 1000 }).catch(() => null);
}
// On a machine that takes longer to start a process than the lease lasts, there is nothing to wait for.
if (seconds === null) console.log("    the gateway was back only after its lease had ended");
else check("a countdown runs while the retry waits", /^\d+ s$/.test(seconds), seconds);
if (!over) await gallery(page, "story-lease");
seen = await killed;
check("the gateway is killed: one charge", seen.with === 1 && seen.without === 2, seen);
await page.getByText(/The gateway asks the payments API by itself in \d+ s/).waitFor();
await accessible(page, "the story while an outcome is unknown");
await page.getByText("The gateway found out by itself.").waitFor();
check("it is told as a success", (await page.locator("li.settled").count()) >= 1);
await accessible(page, "the story after a reconciliation");
await gallery(page, "story");
await picture(page, "story", 1130);
seen = await press("Retry");
check("the retry is replayed: still one charge", seen.with === 1, seen);
const columns = await page.locator(".log").allTextContents();
check("the column without a gateway has none", !/gateway/i.test(columns[0]) && /gateway/i.test(columns[1]), columns[0]);
await accessible(page, "the story at its end");
await page.setViewportSize({ width: 400, height: 844 });
await fits(page, "the story");

// Another site cannot press the buttons.
const status = (await fetch(`http://${place}/act/kill`, { method: "POST", headers: { Origin: "http://evil.example" } })).status;
check("a forged press is refused", status === 403, status);
await end();
