// A plot over time, of lines or of areas on top of each other: uPlot with our colours, a legend that tells values,
// and a text for readers.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import uPlot from "./vendor/uplot.js";
import { colour, onTheme } from "./theme.js";
import { count, timeOfDay } from "./words.js";

/** Steps of an axis of whole numbers. */
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6];

function axes(shown, whole) {
  const grid = { stroke: colour("line"), width: 1 };
  const common = { stroke: colour("quiet"), grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return [
    { ...common, grid: { show: false }, space: 90, size: 30, values: (_, marks) => marks.map((at) => timeOfDay(at * 1000)) },
    { ...common, size: 56, incrs: whole ? WHOLE : undefined, values: (_, marks) => marks.map(whole ? count : shown) },
  ];
}

/** A colour of the style sheet, weakened towards the card that it is drawn on. Opaque: areas overlap. */
function softened(name) {
  const parts = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
  const [strong, back] = [parts(colour(name)), parts(colour("card"))];
  return `rgb(${strong.map((part, index) => Math.round(part * 0.45 + back[index] * 0.55)).join(" ")})`;
}

/** The columns as they are drawn: of stacked series each on top of those before it, the highest first, so that
 * the lower ones are painted over it; then the lines. */
function drawn(series, data, hidden) {
  const below = data[0].map(() => 0);
  const columns = series.map((one, number) => {
    if (!one.stacked) return data[number + 1];
    if (!hidden[one.name]) data[number + 1].forEach((value, index) => { below[index] += value ?? 0; });
    return [...below];
  });
  return [data[0], ...inOrder(series).map((one) => columns[series.indexOf(one)])];
}

function inOrder(series) {
  return [...series.filter((one) => one.stacked).reverse(), ...series.filter((one) => !one.stacked)];
}

/**
 * `series` is a list of { name, label, colour, dash, stacked }, `data` uPlot's columns, `shown` how a value is
 * written, `none` what stands for a missing one, `from` and `until` the ends of the time axis in seconds.
 */
export function Plot({ title, series, data, shown, from, until, height = 240, minTop = 1, none = "–", whole = false }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const [hidden, setHidden] = useState({});
  const [themed, setThemed] = useState(0);
  useEffect(() => onTheme(() => setThemed((times) => times + 1)), []);

  useEffect(() => {
    const options = {
      width: box.current.clientWidth || 600,
      height,
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      // On the right, half of a time of day that stands below the last point.
      padding: [10, 28, 0, 0],
      scales: {
        x: { time: false, range: () => plot.current?.ends ?? [0, 1] },
        y: { range: (_, low, high) => [0, Math.max(minTop, (high ?? 0) * 1.15)] },
      },
      axes: axes(shown, whole),
      series: [{}, ...inOrder(series).map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        fill: one.stacked ? softened(one.colour) : undefined,
        width: one.stacked ? 1 : 2,
        dash: one.dash,
        points: { show: false },
        spanGaps: false,
      }))],
      hooks: { setCursor: [(plotted) => setAt(plotted.cursor.idx ?? null)] },
    };
    const made = new uPlot(options, [[], ...series.map(() => [])], box.current);
    plot.current = { drawn: made, ends: [0, 1] };
    const observer = new ResizeObserver(([entry]) => {
      made.setSize({ width: Math.max(200, entry.contentRect.width), height });
    });
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [themed, height]);

  useEffect(() => {
    if (!plot.current) return;
    plot.current.ends = [from, until];
    plot.current.drawn.setData(drawn(series, data, hidden));
  }, [data, from, until, themed, height, hidden]);

  useEffect(() => {
    inOrder(series).forEach((one, index) => plot.current?.drawn.setSeries(index + 1, { show: !hidden[one.name] }));
  }, [hidden, themed]);

  const last = data[0].length - 1;
  const index = at != null && at <= last ? at : last;
  const told = useMemo(() => series.map((one, number) => {
    const value = data[number + 1][last];
    return `${one.label} ${value == null ? none : shown(value)}`;
  }).join(", "), [data]);

  return html`<figure class="plot">
    <div ref=${box} class="plot-box" role="img" aria-label=${`${title}. Latest: ${told}`}></div>
    <figcaption class="legend">
      <span class="legend-time">${index >= 0 && at != null ? timeOfDay(data[0][index] * 1000) : "latest"}</span>
      ${series.map((one, number) => html`<button key=${one.name} type="button" class=${`legend-item ${hidden[one.name] ? "off" : ""}`}
          aria-pressed=${!hidden[one.name]} title=${`Show or hide ${one.label}`}
          onClick=${() => setHidden({ ...hidden, [one.name]: !hidden[one.name] })}>
        <i class=${`swatch ${one.dash ? "dashed" : ""} ${one.stacked ? "area" : ""} fill-${one.colour}`} aria-hidden="true"></i>${one.label}
        <b>${index >= 0 && data[number + 1][index] != null ? shown(data[number + 1][index]) : none}</b>
      </button>`)}
    </figcaption>
  </figure>`;
}
