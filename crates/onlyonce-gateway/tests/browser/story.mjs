// Goal: a visitor sees the difference. The demo was started by the Rust test; both numbers on the page
// are the API's own ledgers, and that test asks the API itself afterwards.

import { accessible, check, fits, launch, picture, until } from "./page.mjs";

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

let seen = await press("Pay");
check("a purchase is charged once on both sides", seen.with === 1 && seen.without === 1, seen);
seen = await press("Retry");
check("its retry is charged again without, and not with", seen.with === 1 && seen.without === 2, seen);
seen = await press("Double-click 50 times");
check("50 clicks: 1 charge with OnlyOnce, more without", seen.with === 1 && seen.without > 1, seen);
await until("the buttons are there again", () => page.getByRole("button", { name: "Pay", exact: true }).isEnabled());
await picture(page, "story");
seen = await press("Provider hangs up");
check("the provider hangs up: one charge", seen.with === 1 && seen.without === 2, seen);
await page.getByRole("button", { name: "Look it up and resolve" }).click();
await page.getByText("The ledger has it: resolved as completed").waitFor();
await page.locator("li.replayed").last().waitFor();
seen = await press("Pause the gateway");
check("the gateway freezes: one charge", seen.with === 1 && seen.without === 2, seen);
seen = await press("Kill the gateway");
check("the gateway is killed: one charge", seen.with === 1 && seen.without === 2, seen);
await accessible(page, "the story at its end");
await page.setViewportSize({ width: 390, height: 844 });
await fits(page, "the story");

// Another site cannot press the buttons.
const status = (await fetch(`http://${place}/act/kill`, { method: "POST", headers: { Origin: "http://evil.example" } })).status;
check("a forged press is refused", status === 403, status);
await end();
