// Light or dark: as the system says, until somebody chooses.

const NAME = "onlyonce-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const told = new Set();

function chosen() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}

/** "light" or "dark". */
export function theme() {
  return chosen() ?? (system.matches ? "dark" : "light");
}

function apply() {
  document.documentElement.dataset.theme = theme();
  for (const tell of told) tell(theme());
}

/** Changes to the other one, and remembers it. */
export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(NAME, next);
  } catch {
    // It holds for this page then.
  }
  apply();
}

/** Calls `tell` at every change; gives a function that ends that. */
export function onTheme(tell) {
  told.add(tell);
  return () => told.delete(tell);
}

/** The value of a colour of the style sheet, for what is drawn on a canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

system.addEventListener("change", apply);
apply();
