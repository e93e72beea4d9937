// A line plot over time: uPlot with our colours, a legend that tells values, and a text for readers.

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

/**
 * `series` is a list of { name, label, colour, dash }, `data` uPlot's columns, `shown` how a value is
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
      padding: [10, 8, 0, 0],
      scales: {
        x: { time: false, range: () => plot.current?.ends ?? [0, 1] },
        y: { range: (_, low, high) => [0, Math.max(minTop, (high ?? 0) * 1.15)] },
      },
      axes: axes(shown, whole),
      series: [{}, ...series.map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        fill: one.fill ? `${colour(one.colour)}1f` : undefined,
        width: 2,
        dash: one.dash,
        points: { show: false },
        spanGaps: false,
      }))],
      hooks: { setCursor: [(drawn) => setAt(drawn.cursor.idx ?? null)] },
    };
    const drawn = new uPlot(options, [[], ...series.map(() => [])], box.current);
    plot.current = { drawn, ends: [0, 1] };
    const observer = new ResizeObserver(([entry]) => {
      drawn.setSize({ width: Math.max(200, entry.contentRect.width), height });
    });
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [themed, height]);

  useEffect(() => {
    if (!plot.current) return;
    plot.current.ends = [from, until];
    plot.current.drawn.setData(data);
  }, [data, from, until, themed, height]);

  useEffect(() => {
    series.forEach((one, index) => plot.current?.drawn.setSeries(index + 1, { show: !hidden[one.name] }));
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
        <i class=${`swatch ${one.dash ? "dashed" : ""} fill-${one.colour}`} aria-hidden="true"></i>${one.label}
        <b>${index >= 0 && data[number + 1][index] != null ? shown(data[number + 1][index]) : none}</b>
      </button>`)}
    </figcaption>
  </figure>`;
}
