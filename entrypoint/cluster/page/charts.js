// The curves of the run and of the GPUs, which the head has thinned. `PHASE_COLOURS` and `LINES` are the report's.
"use strict";

const CHARTS = [
  ["Reward", /^train\/(reward|reward_(?!std)\w+|acc|format)$/],
  ["Loss", /^(train|eval)\/loss$/],
  ["Learning rate", /^train\/lr$/],
  ["Held-out accuracy", /^eval\/(?!loss$|response_length$|truncated$)/],
  ["KL from the reference", /^train\/kl$/],
  ["Entropy", /^train\/entropy$/],
  ["Tokens of a reply", /^train\/response_length$/],
  ["Tokens per second", /^perf\/tokens_per_second$/],
  ["Seconds of a step, by phase", /^timing\/(?!step$)/],
  ["Memory, GB", /^memory\//],
];
const GPU_CHARTS = [["Use of the GPUs, %", /^busy\//], ["Memory of a GPU, GB", /^memory\//]];
const ORDER = [...CHARTS, ...GPU_CHARTS].map(([title]) => title);
const NONE = {version: "", steps: [], series: {}};
let curves = NONE, gpus = NONE, drawn = new Map();

/** Ask for the points that are new, and draw them. */
async function refreshCurves(job) {
  const after = curves.steps.at(-1) ?? 0;
  const query = new URLSearchParams({after, version: curves.version, ...(job ? {job} : {})});
  const answer = await ask(`v1/curves?${query}`);
  if (!answer.ok) return;
  const news = await answer.json();
  curves = news.version === curves.version ? joined(curves, news) : news;
  drawCurves();
  if (news.more) await refreshCurves(job);
}

/** Ask for the newest use of the cluster's GPUs. Its points have times, in seconds, for steps. */
async function refreshGpus() {
  const after = gpus.steps.at(-1) ?? 0;
  const answer = await ask(`v1/gpus?${new URLSearchParams({after, version: gpus.version})}`);
  if (!answer.ok) return;
  const news = await answer.json();
  gpus = news.version === gpus.version ? joined(gpus, news) : news;
  drawCurves();
}

/** Pure: the points that were known up to the first new one, and the new ones. */
function joined(known, news) {
  if (!news.steps.length) return known;
  const kept = known.steps.filter(step => step < news.steps[0]).length;
  const steps = [...known.steps.slice(0, kept), ...news.steps], series = {};
  for (const name of new Set([...Object.keys(known.series), ...Object.keys(news.series)]))
    series[name] = [
      ...(known.series[name] ?? Array(kept).fill(null)).slice(0, kept),
      ...(news.series[name] ?? Array(news.steps.length).fill(null)),
    ];
  return {...news, steps, series};
}

function forgetCurves() {
  curves = NONE;
}

function drawCurves() {
  by("curves").hidden = !curves.steps.length && !gpus.steps.length;
  for (const [title, pattern] of CHARTS) drawChart(title, pattern, curves);
  for (const [title, pattern] of GPU_CHARTS) drawChart(title, pattern, gpus);
}

function drawChart(title, pattern, {steps, series}) {
  const names = Object.keys(series).filter(name => pattern.test(name) && series[name].some(value => value !== null));
  const key = names.join(), known = drawn.get(title);
  if (known && known.key !== key) {
    known.plot.destroy();
    known.figure.remove();
    drawn.delete(title);
  }
  if (!steps.length || !names.length) return;
  const data = [steps, ...names.map(name => series[name])];
  const chart = drawn.get(title) ?? begin(title, names, key, data);
  chart.plot.setData(data);
  if (chart.plot.cursor.idx === null || chart.plot.cursor.idx === undefined) showNewest(chart.plot);
  chart.box.setAttribute("aria-label", `${title}. ${names.map(name => spoken(name, {steps, series})).join("; ")}`);
}

/** Say the newest values below a chart that no pointer is on. */
const showNewest = plot => plot.setLegend({idxs: plot.data.map(values => values.findLastIndex(value => value !== null && value !== undefined))}, false);

/** Pure: a curve in words, for those who do not see it. */
function spoken(name, {steps, series}) {
  const known = series[name].flatMap((value, place) => value === null ? [] : [[steps[place], value]]);
  const when = step => isTime(name) ? `at ${moment(1000 * step)}` : `at step ${step}`;
  const say = ([step, value]) => `${value} ${when(step)}`;
  return `${short(name)}: ${say(known[0])}, ${say(known.at(-1))}`;
}

/** Pure: whether the reward server takes most of a step. */
function slowRewards({series}) {
  const last = name => series[name]?.findLast(value => value !== null) ?? 0;
  const share = last("timing/reward") / last("timing/step");
  return share > 0.5 ? [["warn", `rewards take ${Math.round(100 * share)} % of a step: the GPUs wait for the reward server`]] : [];
}

const isTime = name => /^(busy|memory)\/(least|mean|most)$/.test(name);
const colour = (name, place) => (name.startsWith("timing/") && PHASE_COLOURS[name.slice(7)]) || LINES[place % LINES.length];
const hour = time => clock(1000 * time).slice(0, 5);
const short = name => (name === "eval/loss" ? "held-out loss" : name.slice(name.indexOf("/") + 1)).replace(/_gb$/, "").replaceAll("_", " ");

function begin(title, names, key, data) {
  const box = make("div", {});
  box.setAttribute("role", "img");
  const figure = make("figure", {}, make("figcaption", {}, title), box);
  const place = ORDER.indexOf(title);
  const next = [...by("charts").children].find(other => other.place > place);
  figure.place = place;
  by("charts").insertBefore(figure, next ?? null);
  const plot = new uPlot(options(names, box.clientWidth), data, box);
  new ResizeObserver(() => box.clientWidth && plot.setSize({width: box.clientWidth, height: 190})).observe(box);
  const chart = {key, plot, figure, box};
  drawn.set(title, chart);
  return chart;
}

function options(names, width) {
  const ink = getComputedStyle(document.body).color;
  const line = {stroke: ink, grid: {stroke: "#8884", width: 1}, ticks: {stroke: "#8884", width: 1}};
  return {
    width: width || 300,
    height: 190,
    hooks: {ready: [showNewest]},
    scales: {x: {time: isTime(names[0])}},
    axes: [isTime(names[0]) ? {...line, values: (_, times) => times.map(hour)} : line, {...line, size: 56}],
    series: [isTime(names[0]) ? {label: "time", value: (_, time) => time ? clock(1000 * time) : "--"} : {label: "step"}, ...names.map((name, place) => ({
      label: short(name), stroke: colour(name, place), width: 2, spanGaps: true, points: {show: (plot, place) => name.startsWith("eval/") || plot.data[place].filter(value => value !== null).length < 2},
    }))],
  };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const {plot, figure} of drawn.values()) { plot.destroy(); figure.remove(); }
  drawn.clear();
  drawCurves();
});
