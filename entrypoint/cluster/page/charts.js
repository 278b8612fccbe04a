// The curves of the run and of the GPUs. The head thins them, and says which chart draws which, in which colours.
"use strict";

const NONE = {version: "", steps: [], series: {}, charts: []};
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
  const wanted = [...curves.charts.map(chart => [chart, curves]), ...gpus.charts.map(chart => [chart, gpus])]
    .map(([chart, known]) => [{...chart, metrics: chart.metrics.filter(({name}) => known.series[name]?.some(value => value !== null))}, known])
    .filter(([chart]) => chart.metrics.length);
  for (const [title, {key, plot, figure}] of drawn)
    if (!wanted.some(([chart]) => chart.title === title && keyOf(chart) === key)) {
      plot.destroy();
      figure.remove();
      drawn.delete(title);
    }
  for (const [chart, known] of wanted) drawChart(chart, known);
  for (const section of by("charts").children) section.hidden = !section.querySelector("figure");
}

const keyOf = chart => chart.metrics.map(({name}) => name).join();

function drawChart(chart, {steps, series}) {
  const data = [steps, ...chart.metrics.map(({name}) => series[name])];
  const known = drawn.get(chart.title) ?? begin(chart, data);
  known.plot.setData(data);
  if (known.plot.cursor.idx === null || known.plot.cursor.idx === undefined) showNewest(known.plot);
  known.box.setAttribute("aria-label", `${chart.title}. ${chart.metrics.map(metric => spoken(metric, {steps, series})).join("; ")}`);
}

/** Say the newest values below a chart that no pointer is on. */
const showNewest = plot => plot.setLegend({idxs: plot.data.map(values => values.findLastIndex(value => value !== null && value !== undefined))}, false);

/** Pure: a curve in words, for those who do not see it. */
function spoken({name, label}, {steps, series}) {
  const known = series[name].flatMap((value, place) => value === null ? [] : [[steps[place], value]]);
  const when = step => isTime(name) ? `at ${moment(1000 * step)}` : `at step ${step}`;
  const say = ([step, value]) => `${value} ${when(step)}`;
  return `${label}: ${say(known[0])}, ${say(known.at(-1))}`;
}

/** Pure: whether the reward server takes most of a step. */
function slowRewards({series}) {
  const last = name => series[name]?.findLast(value => value !== null) ?? 0;
  const share = last("timing/reward") / last("timing/step");
  return share > 0.5 ? [["warn", `rewards take ${Math.round(100 * share)} % of a step: the GPUs wait for the reward server`]] : [];
}

const isTime = name => /^(busy|memory)\/(least|mean|most)$/.test(name);
const hour = time => clock(1000 * time).slice(0, 5);

/** The charts of a group, below its name. */
function groupOf(name) {
  const known = [...by("charts").children].find(section => section.dataset.group === name);
  if (known) return known.lastChild;
  const section = make("section", {}, make("h3", {}, name), make("div", {className: "charts"}));
  section.dataset.group = name;
  const order = [...curves.charts, ...gpus.charts].map(({group}) => group);
  const next = [...by("charts").children].find(other => order.indexOf(other.dataset.group) > order.indexOf(name));
  by("charts").insertBefore(section, next ?? null);
  return section.lastChild;
}

function begin(chart, data) {
  const box = make("div", {});
  box.setAttribute("role", "img");
  const figure = make("figure", {}, make("figcaption", {}, chart.title), box);
  const order = [...curves.charts, ...gpus.charts].map(({title}) => title), group = groupOf(chart.group);
  const next = [...group.children].find(other => order.indexOf(other.firstChild.textContent) > order.indexOf(chart.title));
  group.insertBefore(figure, next ?? null);
  const plot = new uPlot(options(chart.metrics, box.clientWidth), data, box);
  new ResizeObserver(() => box.clientWidth && plot.setSize({width: box.clientWidth, height: 190})).observe(box);
  const made = {key: keyOf(chart), plot, figure, box};
  drawn.set(chart.title, made);
  return made;
}

function options(metrics, width) {
  const ink = getComputedStyle(document.body).color, byTime = isTime(metrics[0].name);
  const line = {stroke: ink, grid: {stroke: "#8884", width: 1}, ticks: {stroke: "#8884", width: 1}};
  return {
    width: width || 300,
    height: 190,
    hooks: {ready: [showNewest]},
    scales: {x: {time: byTime}},
    axes: [byTime ? {...line, values: (_, times) => times.map(hour)} : line, {...line, size: 56}],
    series: [byTime ? {label: "time", value: (_, time) => time ? clock(1000 * time) : "--"} : {label: "step"}, ...metrics.map(({name, label, colour}) => ({
      label, stroke: colour, width: 2, spanGaps: true, points: {show: (plot, place) => name.startsWith("eval/") || plot.data[place].filter(value => value !== null).length < 2},
    }))],
  };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const {plot, figure} of drawn.values()) { plot.destroy(); figure.remove(); }
  drawn.clear();
  drawCurves();
});
