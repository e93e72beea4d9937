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
async function press(name) {
  const orders = page.locator("section", { hasText: "With OnlyOnce" }).last().locator("li.order");
  const before = await orders.count();
  const pay = page.getByRole("button", { name: "Pay", exact: true });
  await page.getByRole("button", { name, exact: true }).click();
  if (name !== "Retry") await until(`${name}: it begins`, async () => (await orders.count()) > before || before > 20);
  else await page.waitForTimeout(700);
  await until(`${name}: it is played`, async () => pay.isEnabled());
  await page.waitForTimeout(500);
  return numbers();
}

let seen = await press("Pay");
check("a purchase is charged once on both sides", seen.with === 1 && seen.without === 1, seen);
seen = await press("Retry");
check("its retry is charged again without, and not with", seen.with === 1 && seen.without === 2, seen);
seen = await press("Double-click 50 times");
check("50 clicks: 1 charge with OnlyOnce, more without", seen.with === 1 && seen.without > 1, seen);
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
