// Goal: whoever runs a route in shadow mode sees what switching it on would change, for whom, and what to look at
// first. The Rust test has sent the requests: two clients, a duplicate, a reused key, two requests without a key.

import { accessible, check, fits, gallery, launch, picture, until, whole } from "./page.mjs";

const { admin, token } = JSON.parse(process.env.PLACE);
const base = `http://${admin}/`;
const { window: open, end } = await launch();
const { page } = await open({ allowed: [admin] });
await page.goto(`${base}#token=${token}`);
await page.getByText("Shadow mode: r.").waitFor();
await accessible(page, "an overview with shadow mode");
await gallery(page, "overview-shadow");
await page.getByRole("link", { name: "Shadow report" }).click();
await page.getByRole("heading", { name: "Shadow report" }).waitFor();
const text = () => page.locator("main").innerText();
await until("the report in one sentence", async () => /1 duplicate would have been answered\s+without being executed, and 1 request refused\./.test(await text()));
check("how many had no key", (await text()).includes("6 requests were observed, 2 of them without a key."));
const row = async (client) => (await page.getByRole("row", { name: new RegExp(`^${client}`) }).first().locator("td").allTextContents()).join(" ");
check("by client", (await row("globex")) === "4 0 1 2" && (await row("acme")) === "2 1 0 0", [await row("globex"), await row("acme")]);
check("what to look at first", (await page.locator(".checklist .open").count()) === 3, await page.locator(".checklist .open").allTextContents());
await accessible(page, "the shadow report");
await gallery(page, "shadow");
await picture(page, "dashboard-shadow", 1060);
await page.setViewportSize({ width: 400, height: 844 });
await fits(page, "the shadow report");
await whole(page, "the shadow report");
await end();
