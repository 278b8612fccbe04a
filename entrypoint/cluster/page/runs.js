// The list of runs, and the curves of several over each other.
"use strict";

const MOST_RUNS = 200;
const STATES = {...ENDS, failed: FAILED, running: ["Running", "good", "▶"], head_lost: ["Head lost", "bad", "✕"], trainer_lost: ["Ended without saying so", "bad", "✕"], queued: ["Queued", "busy", "…"], unreadable: ["Unreadable", "bad", "?"]};
const TO_DO = new Set(["failed", "stopped", "head_lost", "trainer_lost"]), unfolded = new Set();
const LIST = document.body.dataset.list; // the directory's name, if the page has no run of its own
const chosen = new Map(), pointsOf = new Map();
const together = foldedCharts("together");
let runs = [], palette = [], drawnRuns = "";

/** The run that the address names; null: the page's own one, or the list. */
const picked = () => inAddress().get("run");
const isList = () => LIST !== undefined && picked() === null;

/** Ask for the rows, some at a time if there are many. */
async function refreshRuns() {
  const answer = await ask("v1/runs"), news = await answer.json();
  if (!answer.ok) return void (by("runs-count").textContent = `The runs cannot be read: ${news.error}`);
  runs = news.runs;
  palette = news.colours;
  by("runs").hidden = !isList() && (!runs.length || LIST !== undefined);
  by("runs-count").textContent = news.more ? `${runs.length} of ${news.count} runs are read` : `${news.count} run${news.count === 1 ? "" : "s"}`;
  chooseNamed();
  showRuns();
  if (news.more) await refreshRuns();
  await refreshTogether();
}

/** Pure: the order of two runs: newest, best or longest first, names by the alphabet. */
function inOrder(one, other, by) {
  if (by === "name") return one.name.localeCompare(other.name) || one.id.localeCompare(other.id);
  const [a, b] = [one[by], other[by]];
  if (a === null || b === null) return (a === null) - (b === null);
  if (!a && !b) return one.id.localeCompare(other.id, undefined, {numeric: true}); // of a queue: the next one first
  if (by === "best") return one.metric.localeCompare(other.metric) || (/loss/.test(one.metric) ? a - b : b - a);
  return a < b ? 1 : a > b ? -1 : 0;
}

/** Pure: the name of a run; with its path if another run has the same name. */
const titleOf = run => runs.some(other => other.name === run.name && other.id !== run.id) ? `${run.name} (${run.id})` : run.name;
const ran = ({began, ended}) => began && `${dated(began)}${ended > began ? `, ${duration((Date.parse(ended) - Date.parse(began)) / 1000)}` : ""}`;

function showRuns() {
  const wanted = by("runs-filter").value.trim().toLowerCase();
  const rows = runs.filter(run => `${run.name} ${run.id} ${run.model} ${run.recipe} ${run.state}`.toLowerCase().includes(wanted))
    .sort((one, other) => inOrder(one, other, by("runs-order").value));
  const shown = rows.slice(0, MOST_RUNS);
  by("runs-shown").textContent = shown.length < rows.length ? `${shown.length} of ${rows.length} runs: find others by a word` : "";
  const isFull = chosen.size >= palette.length;
  const key = JSON.stringify([shown, [...chosen], isFull, location.hash]);
  if (key === drawnRuns) return; // a reader may be on a checkbox
  drawnRuns = key;
  const at = document.activeElement?.dataset.run;
  by("run-rows").replaceChildren(...shown.map(run => runRow(run, isFull)));
  if (at) by("run-rows").querySelector(`[data-run="${CSS.escape(at)}"]`)?.focus();
}

/** A piece of line in the colour of a run's curves, if it is chosen. */
function lineOf(id) {
  const line = make("span", {className: "line"});
  line.style.background = chosen.get(id) ?? "none";
  return line;
}

function runRow(run, isFull) {
  const [word, colour, mark] = STATES[run.state] ?? [run.state || "not begun", "busy", "…"], title = titleOf(run);
  const box = make("input", {type: "checkbox", checked: chosen.has(run.id), disabled: isFull && !chosen.has(run.id), ariaLabel: `Curves of ${title}`});
  box.dataset.run = run.id;
  box.addEventListener("change", () => choose(run.id, box.checked));
  const best = run.best === null ? "" : `${number(run.best)} ${run.metric_title}${run.best_step === 0 ? ", before training" : `, step ${run.best_step}`}`;
  const cells = [["run", make("a", {href: addressWith("run", run.id)}, title)], ["state", make("span", {className: colour, title: run.sentence}, `${mark} ${word}`), ...commandsOf(run)], ["model", run.model],
    ["recipe", run.recipe], ["steps", run.steps === null ? "" : run.total_steps ? `${run.steps} of ${run.total_steps}` : run.steps], ["best value", best], ["time", run.began ? timeOf(run.began, ran(run)) : ""]];
  return make("tr", {}, make("td", {}, box, " ", lineOf(run.id)), ...cells.map(([name, ...content]) => {
    const cell = make("td", {}, ...content);
    cell.dataset.name = name;
    return cell;
  }));
}

/** What to type about a run that has failed, was stopped or is lost; folded until a reader wants it. */
function commandsOf(run) {
  if (!TO_DO.has(run.state)) return [];
  const path = quoted(run.path), lines = [["go on", run.resume], ["why, and where the time went", `rollcall report ${path}`], ["its page", `rollcall open ${path}`], ["its logs", `rollcall logs ${path}`]];
  const found = make("details", {open: unfolded.has(run.id)}, make("summary", {}, "commands"), ...lines.filter(([, command]) => command).map(([what, command]) => make("p", {}, `${what}: `, make("code", {}, command))));
  found.addEventListener("toggle", () => found.open ? unfolded.add(run.id) : unfolded.delete(run.id));
  return [found];
}

/** Pure: a word as a shell reads it. */
const quoted = word => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;

/** Choose the runs that the address names, as far as they are known. */
function chooseNamed() {
  for (const id of inAddress().getAll("curves"))
    if (!chosen.has(id) && chosen.size < palette.length && runs.some(run => run.id === id)) chosen.set(id, palette.find(colour => ![...chosen.values()].includes(colour)));
}

/** Take a run into the charts, in the first colour that is free, or out of them. */
function choose(id, isWanted) {
  if (isWanted) chosen.set(id, palette.find(colour => ![...chosen.values()].includes(colour)));
  else chosen.delete(id);
  keepInAddress("curves", ...chosen.keys());
  showRuns();
  refreshTogether().catch(() => {});
}

/** Draw a chart for each metric, with one line for each run that is chosen. */
async function refreshTogether() {
  const those = runs.filter(run => chosen.has(run.id));
  for (const id of chosen.keys()) {
    let points = pointsOf.get(id) ?? NONE;
    do pointsOf.set(id, points = await newer(points, id)); while (points.more);
  }
  by("runs-hint").textContent = chosen.size >= palette.length ? `${palette.length} runs at most: each has a colour of its own.` : "Choose runs to lay their curves over each other.";
  by("compared").hidden = !chosen.size; // a chart has the width of its place
  together.show(overEachOther(those));
  await refreshComparison(those);
}

/** Pure: the points of several runs at all their steps, and a chart of each metric. */
function overEachOther(those) {
  const points = those.map(run => pointsOf.get(run.id) ?? NONE), steps = [...new Set(points.flatMap(one => one.steps))].sort((a, b) => a - b);
  const series = {}, made = new Map();
  those.forEach((run, place) => {
    for (const chart of points[place].charts) for (const {name, label} of chart.metrics) {
      const own = `${name} ${run.id}`, values = points[place].series[name], at = new Map(points[place].steps.map((step, n) => [step, values?.[n] ?? null]));
      series[own] = steps.map(step => at.get(step) ?? null);
      const title = chart.metrics.length > 1 || made.has(`${chart.title}: ${label}`) ? `${chart.title}: ${label}` : chart.title;
      const one = made.get(name) ?? made.set(name, {title, group: chart.group, metrics: []}).get(name);
      one.metrics.push({name: own, label: titleOf(run), colour: chosen.get(run.id)});
    }
  });
  return {steps, series, charts: [...made.values()]};
}

by("runs-filter").addEventListener("input", showRuns);
by("runs-order").addEventListener("change", showRuns);
remembered(by("differing"), "differing", true);
remembered(by("final"), "final", true);
