// Asks the head for the curves of the run and of the GPUs.
"use strict";

const NONE = {version: "", steps: [], series: {}, charts: []};
const charts = foldedCharts("charts");
let curves = NONE, gpus = NONE;

/** Ask for the points that are new, and draw them. */
async function refreshCurves(job) {
  const now = await newer(curves, job);
  if (job !== shownJob) return;
  curves = now;
  drawCurves();
  if (now.more) await refreshCurves(job);
}

/** The curves of a run that are known, with some of what is new. */
async function newer(known, job) {
  const after = known.steps.at(-1) ?? 0;
  const query = new URLSearchParams({after, version: known.version, ...(job ? {job} : {})});
  const answer = await ask(`v1/curves?${query}`);
  if (!answer.ok) return {...known, more: false};
  const news = await answer.json();
  return news.version === known.version ? joined(known, news) : news;
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
  if (!news.steps.length) return {...known, more: news.more};
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
  by("curves").hidden = false; // a chart has the width of its place
  charts.show(curves, gpus);
  by("curves").hidden = !charts.drawn.size;
  showJumps();
}

/** Pure: whether the reward server takes most of a step. */
function slowRewards({series}) {
  const last = name => series[name]?.findLast(value => value !== null) ?? 0;
  const share = last("timing/reward") / last("timing/step");
  return share > 0.5 ? [["warn", `rewards take ${Math.round(100 * share)} % of a step: the GPUs wait for the reward server`]] : [];
}
