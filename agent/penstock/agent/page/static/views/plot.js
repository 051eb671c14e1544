/** One plot, drawn by uPlot on a canvas: the pointer and the keyboard move a cursor that all plots share. */
import {minuteOfDay} from "../format.js";
import {SIGNS} from "../marks.js";
import {html, useEffect, useRef} from "../markup.js";
import {alone, drawn, moved, spoken, timesOf} from "../signals.js";
import {say} from "../units.js";
import uPlot from "../vendor/uplot.module.js";

/** @typedef {import("../types.js").PlotProps} PlotProps */

const FONT = "10px system-ui, sans-serif";
/** The least top of an axis, so that almost nothing does not look like much. */
const LEAST = {rate: 1, bytes: 1000, seconds: 0.1, count: 1, share: 0.05};
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** @param {string} name */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
}

/**
 * @param {PlotProps} props
 */
export function Plot(props) {
  const {plot, signals, range, marks, read, scrub} = props;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const chart = useRef(/** @type {uPlot | null} */ (null));
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const made = new uPlot(options(latest), [[]], element);
    chart.current = made;
    const sized = new ResizeObserver(() => made.setSize({width: element.clientWidth, height: element.clientHeight}));
    sized.observe(element);
    const redraw = () => made.redraw(false);
    DARK.addEventListener("change", redraw);
    return () => {
      DARK.removeEventListener("change", redraw);
      sized.disconnect();
      made.destroy();
      latest.current.onCursor(null);
    };
  }, []);
  useEffect(() => {
    chart.current?.setData(/** @type {uPlot.AlignedData} */ ([timesOf(signals), ...drawn(plot, signals)]));
    // Under the keyboard's cursor time goes on: it stays at its slot.
    if (document.activeElement === box.current && read.time !== null && (chart.current?.cursor.left ?? -1) >= 0) {
      point(chart.current, read.time);
    }
  }, [signals, range.from]);
  useEffect(() => chart.current?.redraw(false), [marks, scrub]);
  return html`<div
    ref=${box}
    class="plot"
    tabindex="0"
    role="slider"
    aria-label=${plot.title}
    aria-orientation="horizontal"
    aria-valuemin=${signals.from}
    aria-valuemax=${moved(signals, null, 0)}
    aria-valuenow=${read.time ?? moved(signals, null, 0)}
    aria-valuetext=${spoken(plot, signals, read)}
    onKeyDown=${(/** @type {KeyboardEvent} */ event) => pressed(event, props, chart.current)}
    onBlur=${() => point(chart.current, null)}
    onClick=${() => read.time !== null && props.onPick(read.time)}
  ></div>`;
}

/**
 * Moves the cursor of all plots to a time, or takes it away.
 *
 * @param {uPlot | null} chart
 * @param {number | null} time
 */
function point(chart, time) {
  const place = time === null ? {left: -10, top: -10} : {left: chart?.valToPos(time, "x") ?? -10, top: 1};
  // The third argument, which its types do not have, tells the other plots.
  /** @type {any} */ (chart)?.setCursor(place, true, true);
}

/**
 * @param {KeyboardEvent} event
 * @param {PlotProps} props
 * @param {uPlot | null} chart
 */
function pressed(event, {signals, range, read, onPick}, chart) {
  const ends = {ArrowLeft: moved(signals, read.time, -1), ArrowRight: moved(signals, read.time, 1), Home: moved(signals, range.from, 0), End: moved(signals, null, 0)};
  if (event.altKey || event.ctrlKey || event.metaKey) {
    return;
  }
  if (event.key in ends) {
    point(chart, Math.min(range.to, Math.max(range.from, ends[/** @type {keyof typeof ends} */ (event.key)])));
  } else if (event.key === "Enter" && read.time !== null) {
    onPick(read.time);
  } else {
    return;
  }
  event.preventDefault();
}

/**
 * @param {{current: PlotProps}} latest what the page says now
 * @returns {uPlot.Options}
 */
function options(latest) {
  const {plot} = latest.current;
  const units = [...new Set(plot.series.map((series) => series.unit))];
  return {
    width: 300,
    height: 80,
    ms: 1,
    legend: {show: false},
    padding: [6, units.length > 1 ? 0 : 8, 0, 0],
    cursor: {
      y: false,
      points: {show: false},
      // A hand that trembles clicks, too.
      drag: {x: false, y: false, click: () => undefined},
      sync: {key: "signals"},
      bind: {dblclick: () => null},
    },
    scales: {
      x: {range: () => [latest.current.range.from, latest.current.range.to]},
      ...Object.fromEntries(
        units.map((unit) => [unit, {range: (/** @type {uPlot} */ _, /** @type {number} */ _low, /** @type {number} */ high) => [0, Math.max(LEAST[unit], high ?? 0) * 1.05]}]),
      ),
    },
    axes: [axis("x"), ...units.map((unit, index) => axis(unit, index))],
    // The top of a stack first: what stands lower is drawn over it.
    series: [{}, ...plot.series.map(line)],
    hooks: {
      draw: [(chart) => paint(chart, latest.current)],
      setCursor: [({data, cursor}) => latest.current.onCursor(cursor.idx != null && (cursor.left ?? -1) >= 0 ? data[0][cursor.idx] : null)],
    },
  };
}

/**
 * @param {"x" | import("../types.js").Unit} scale
 * @param {number} [index] of its unit; the second one's axis is on the right
 * @returns {uPlot.Axis}
 */
function axis(scale, index = 0) {
  const grid = {stroke: () => colour("line"), width: 1, show: index === 0};
  const common = {scale, font: FONT, stroke: () => colour("faint"), grid, ticks: {show: false}};
  return scale === "x"
    ? {...common, size: 16, gap: 2, space: 64, values: (_, times) => times.map(minuteOfDay)}
    : {...common, side: index ? 1 : 3, size: 50, gap: 4, space: 22, values: (_, values) => values.map((value) => say(value, scale))};
}

/**
 * @param {import("../types.js").Series} series
 * @returns {uPlot.Series}
 */
function line({unit, colour: name, dash, layer, alarm}) {
  /** @param {uPlot} chart @param {number} index */
  const stroke = (chart, index) => colour(alarm && !chart.data[index]?.some(Boolean) ? "faint" : name);
  return {
    scale: unit,
    stroke: layer ? undefined : stroke,
    fill: layer ? stroke : undefined,
    width: layer ? 0 : 1.5,
    dash,
    points: {show: true, size: 4, stroke, fill: stroke, filter: (chart, index) => alone(/** @type {any} */ (chart.data[index]))},
  };
}

/**
 * Draws the marks and the moment that is looked at.
 *
 * @param {uPlot} chart
 * @param {PlotProps} props
 */
function paint(chart, {marks, range, scrub}) {
  const {ctx, bbox} = chart;
  const ratio = devicePixelRatio;
  /** @param {number} time @param {string} name @param {number[]} dash */
  const upright = (time, name, dash) => {
    const x = Math.round(chart.valToPos(time, "x", true));
    ctx.strokeStyle = ctx.fillStyle = colour(name);
    ctx.setLineDash(dash.map((length) => length * ratio));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    return x;
  };
  ctx.save();
  ctx.lineWidth = ratio;
  ctx.font = `${8 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  for (const mark of marks.filter(({time}) => time >= range.from && time <= range.to)) {
    const {sign, colour: name} = SIGNS[mark.kind];
    ctx.fillText(sign, upright(mark.time, name, [1, 3]), bbox.top + 2 * ratio);
  }
  if (scrub !== null) {
    ctx.lineWidth = 2 * ratio;
    upright(scrub, "past", []);
  }
  ctx.restore();
}
