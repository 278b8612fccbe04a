// What all parts of the page use: answers of the head, and words of the state.
"use strict";

const ANSWER_SECONDS = 10, MANY = 4, LONG = 18; // LONG: characters of a fact that has two columns
const by = id => document.getElementById(id);

/** Ask the head. It is an error if the answer is not there within ANSWER_SECONDS. */
const ask = (path, options = {}) => fetch(path, {...options, signal: AbortSignal.timeout(1000 * ANSWER_SECONDS)});

/** Pure: a length of time in full units, as the report has it, but minutes without seconds. */
function duration(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  if (!hours) return `${minutes} min`;
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Pure: a length of time as the report has it. */
const exactly = seconds => seconds < 100 || seconds >= 3600 ? duration(seconds) : `${Math.floor(Math.round(seconds) / 60)} min ${Math.round(seconds) % 60} s`;

/** Pure: a reward function that tells no accuracy is measured by its reward, in any range. */
const heldOut = (value, isReward) => value == null || !isReward && value >= 0 && value <= 1
  ? ["Held-out accuracy", value == null ? null : percent(value)] : ["Held-out reward", number(value)];
const percent = value => `${(100 * value).toFixed(1)} %`;

const FAILED = ["Failed", "bad", "✕"];
const ENDS = {
  finished: ["Finished", "good", "✓"],
  stopped: ["Stopped", "warn", "■"],
};
const PHASES = {
  training: ["Training", "good", "▶"],
  recovering: ["Recovering", "warn", "↻"],
  "roll call": ["Waiting for nodes", "busy", "…"],
  "collective check": ["Checking the network", "busy", "…"],
  starting: ["Starting", "busy", "…"],
  running: ["Running", "good", "▶"],
  head_lost: ["Head lost", "bad", "✕"],
  trainer_lost: ["Ended without saying so", "bad", "✕"],
};

/** Pure: the word, the colour and the mark of a state. */
function headline(state) {
  if (state.isLost) return PHASES.head_lost;
  if (state.outcome) return ENDS[state.outcome.outcome] ?? FAILED;
  if (state.is_starting) return [`Attempt ${state.attempt}: starting, no step yet`, "busy", "▶"];
  if (state.phase === "training" && state.tells_steps === false) return PHASES.running;
  const word = state.phase.charAt(0).toUpperCase() + state.phase.slice(1);
  return PHASES[state.phase] ?? [word, "busy", "…"];
}

/** Pure: whether the page shows a cluster that has no job now. */
const isWithoutJob = ({takes_jobs, job}) => Boolean(takes_jobs) && !job;

/** Pure: whether a run has samples, or will have: only Rollcall's own trainer writes them. */
const maySample = ({has_samples, outcome, run, ...state}) => has_samples || state.tells_steps !== false && (run.recipe ?? "builtin") === "builtin" && !outcome && !isWithoutJob(state);

/** Pure: whether nobody leads the run, though it has not ended. */
const isHeadLost = ({isLost, phase}) => Boolean(isLost) || phase === "head_lost" || phase === "trainer_lost";

/** Pure: the run's name; with the id by which commands know a job that runs. */
const nameOf = ({is_live, job, run}) => is_live && job && job !== run.name ? `${run.name} (${job})` : run.name;

/** Pure: how many nodes there are, and the names of some. */
const several = nodes => `${nodes.length} nodes (${nodes.slice(0, 3).map(node => node.node).join(", ")}, …)`;

/** Pure: what a person must look at, each with its colour. After a failure: what may have caused it. */
function attention(state) {
  if (!state.is_live) return [];
  if (state.outcome) return state.outcome.outcome === "failed" ? findings(state) : [];
  return [...happening(state), ...findings(state)];
}

/** Pure: what goes on in the cluster that a person must look at. */
function happening(state) {
  const found = [];
  const silent = state.nodes.filter(node => !node.present);
  const longest = Math.max(...silent.map(node => node.silent_seconds));
  if (silent.length < MANY)
    for (const node of silent) found.push(["bad", `${node.node} has been silent for ${duration(node.silent_seconds)}: look at its machine and its network`]);
  else found.push(["bad", `${several(silent)} are silent, one for ${duration(longest)}: look at what they share, such as a switch, a rack or a power supply`]);
  const urgent = state.present < state.expected_workers ? "bad" : "warn"; // others may be there in its place
  for (const [node, why] of Object.entries(state.refused)) found.push([urgent, `${node} was refused: ${why}`]);
  const starting = state.nodes.filter(node => node.present && !node.joined), isMany = starting.length >= MANY;
  const isOnItsWay = state.phase === "starting" || state.phase === "roll call"; // the roll has them
  if (isMany && !isOnItsWay) found.push(["warn", `${several(starting)} have checked in and are starting Ray`]);
  for (const {absence, sentence} of state.missing)
    if (absence === "gone" || absence === "unknown" || (absence === "starting-ray" && !isMany && !isOnItsWay)) found.push(["warn", sentence]);
  if (state.phase === "waiting for storage")
    found.push(["bad", "the run directory takes no write: free space, or look at its storage"]);
  if (state.phase === "waiting for Ray to take the job")
    found.push(["bad", "Ray does not take the job: read the log of the head, and end other work on its machine if it is busy"]);
  for (const sentence of [state.idle, state.no_reward]) if (sentence) found.push(["warn", sentence]);
  for (const {node, part, evidence} of state.health ?? []) found.push(["warn", `${node}: ${part}: ${evidence}`]);
  const staying = state.slow_nodes ?? [], told = new Set(staying.map(one => one.node));
  for (const {sentence} of [...(state.stragglers ?? []).filter(one => !told.has(one.node)), ...staying])
    found.push(["warn", sentence]);
  const p = state.progress, age = p && (Date.parse(state.at) - Date.parse(p.at)) / 1000;
  if (p?.step_seconds && state.phase === "training" && age > patience(p))
    found.push(["warn", `no step for ${duration(age)}; the last one took ${duration(p.step_seconds)}`]);
  return found;
}

/** Pure: in what the nodes differ, and what their checks have found. */
function findings(state) {
  const found = [];
  for (const sentence of state.differences) found.push(["warn", sentence]);
  const nodesOf = new Map();
  for (const node of [state.head_node, ...state.nodes])
    for (const check of node.warnings) pushed(nodesOf, check, node);
  for (const [check, nodes] of nodesOf)
    if (nodes.length >= MANY) found.push(["warn", `${several(nodes)}; the first says: ${said(nodes[0], check)}`]);
    else for (const [finding, same] of bySaid(nodes, check)) found.push(["warn", `${same.map(node => node.node).join(", ")}: ${finding}`]);
  return found;
}

function pushed(lists, key, value) {
  (lists.get(key) ?? lists.set(key, []).get(key)).push(value);
  return lists;
}

/** Pure: what a check has found, and the nodes on which it has found just that. */
const bySaid = (nodes, check) => nodes.reduce((lists, node) => pushed(lists, said(node, check), node), new Map());

/** Pure: what is bad comes before warnings, and stays in its order. */
const worstFirst = found => [...found].sort(([one], [other]) => (one !== "bad") - (other !== "bad"));

/** Pure: how long, in seconds, a step may be awaited before its absence is a fault. */
const patience = ({step_seconds: seconds}) => Math.max(60, 5 * (seconds ?? 0));

const FAILOVER = "ROLLCALL_HEAD_FAILOVER", LATE_SECONDS = 30;

/** Pure: whether a worker is still to take the place of a head that is silent for `seconds`. */
const isAwaited = (failover, seconds) => failover?.after != null && seconds < failover.after + LATE_SECONDS;

/** Pure: what follows the loss of a head. */
function whatFollows({failover, isWorkerDue}) {
  const limit = failover?.after == null ? "" : duration(failover.after), again = "start it again with the same run directory, and the run continues.";
  if (isWorkerDue) return `A worker does so after ${limit} of silence (${FAILOVER}), unless you start the head again before. Then rollcall status has the page's new address.`;
  if (limit) return `A worker takes a lost head's place after ${limit} (${FAILOVER}). If none has: ${again}`;
  return failover?.off ? `No worker takes the head's place, as ${failover.off}: ${again}` : `To go on, ${again}`;
}

/** Pure: the newest step of a job that makes steps without its head; "" if it makes none. */
function stillTrains(progress, at) {
  const isNew = progress && (Date.parse(at) - Date.parse(progress.at)) / 1000 <= patience(progress);
  return isNew ? `The job still trains: step ${progress.step} at ${clock(progress.at)}. ` : "";
}

/** Pure: a colour and a sentence: whether the run is well, and what to do. */
function verdict({outcome, phase, takes_jobs, job, is_starting, is_live, isLost, isWorkerDue, isTaken, awaits_worker, progress, at}, found) {
  const toDo = isWorkerDue || awaits_worker ? "Nothing to do yet: a worker takes the head's place."
    : isTaken ? "Ask rollcall status who leads the run now." : "Start the head again.";
  if (isLost) return ["bad", toDo];
  if (outcome?.outcome === "finished") return ["good", "The run has finished: nothing to do."];
  if (outcome?.outcome === "stopped") return ["warn", `The run was stopped${outcome.cause ? ` (${outcome.cause})` : ""}. ${outcome.remedy}`];
  if (outcome) return ["bad", outcome.cause ? `${outcome.cause}${outcome.place ? `, in ${outcome.place}` : ""}. ${outcome.remedy}` : outcome.remedy];
  if (phase === "trainer_lost") return ["bad", "Start it again with the same run directory, and it continues."];
  if (!is_live) return phase === "head_lost" ? ["bad", `${stillTrains(progress, at)}${toDo}`] : ["busy", "It goes on, without a head: this page reads its directory."];
  const bad = found.filter(([colour]) => colour === "bad").length;
  const count = (number, thing) => `${number} ${thing}${number > 1 ? "s" : ""}`;
  if (phase === "recovering") return ["warn", `It recovers by itself: nothing to do yet.${bad ? " If it does not, see below." : ""}`];
  if (bad) return ["bad", `${count(bad, "thing")} to repair: see below.`];
  const trains = phase === "training";
  if (!found.length && isWithoutJob({takes_jobs, job}) && phase.startsWith("waiting for a job")) return ["good", "The cluster is ready, and waits for jobs."];
  if (found.length) return ["warn", `${trains && !is_starting ? "Running. " : ""}${count(found.length, "warning")} below.`];
  return trains && !is_starting ? ["good", "All is well: nothing to do."] : ["busy", "No fault so far: nothing to do yet."];
}

/** Pure: the finding of a check that did not pass. */
const said = (node, check) => node.findings[check] ?? `the check ${check} did not pass: rollcall doctor says why`;

/** Names and values as the rows of a list. */
const pairs = rows => rows.map(([key, value]) => make("div", {className: String(value).length > LONG ? "long" : ""}, make("dt", {}, ...breakable(key)), make("dd", {}, ...breakable(value))));

/** Pure: the best value of the run's main metric, and when; null without one. */
const bestOf = best => best ? `${number(best.value)} ${best.title}, ${best.step ? `step ${best.step}` : "before training"}` : null;

const NO_NAME = /^(?:model|hf|final|best|latest|export.*|checkpoint.*|global_step.*|[0-9a-f]{40})$/;

/** Pure: the model's name; its path if the last part of that names no model. */
const modelOf = ({model, model_path}) => NO_NAME.test(model ?? "") ? model_path || model : model;

/** Pure: how many workers there are of those that the run waits for. */
const workersOf = ({present, expected_workers: expected}) => present || expected ? `${present} of ${expected}` : "none: one node";

/** When the run began, and for how long it has run by now, or ran. `age`: of the state, in seconds. */
function timesOf({run: {created: began}, outcome, at}, age) {
  const ended = outcome?.ended, told = began ? ["Started ", timeOf(began, briefly(began))] : [];
  const until = later => (ended ? exactly : duration)(Math.max(0, (Date.parse(later) - Date.parse(began)) / 1000 + (ended ? 0 : age)));
  if (ended) return [...told, began ? ", ended " : "Ended ", timeOf(ended, began && isSameDay(began, ended) ? clock(ended).slice(0, 5) : briefly(ended)), began ? `, took ${until(ended)}` : ""];
  return began && !outcome ? [...told, `, ${until(at)} ago`] : told;
}

/** Pure: names and values of the facts below the headline. */
function facts(state) {
  const p = state.progress, goesOn = !state.outcome && !state.isLost, rows = [[isWithoutJob(state) ? "Cluster" : "Run", nameOf(state)], ["Model", modelOf(state.run)], ["Algorithm", state.run.algorithm], ["Data", state.run.data], ["Recipe", isWithoutJob(state) ? null : state.run.recipe]];
  rows.push(["Workers", state.is_live ? [workersOf(state), sparesOf(state)].filter(Boolean).join(", ") : null]);
  rows.push(["Run directory", state.outcome || !state.is_live ? state.run.run_dir : null], ["Trained model", state.outcome?.model], ["Newest checkpoint", state.outcome?.newest_checkpoint], [state.outcome ? "Attempts" : "Attempt", state.attempt || null], [state.outcome ? "Failures" : "Failures so far", state.failures || null]);
  if (p) rows.push(
    ["Step", p.total_steps ? `${p.step} of ${p.total_steps}` : p.step],
    ["Steps made", state.steps_lost ? `${p.step + state.steps_lost}, ${state.steps_lost} lost` : null],
    ["Last step at", isHeadLost(state) && p.at ? dated(p.at) : null],
    ["Time left", goesOn && p.eta_seconds && p.step < p.total_steps ? duration(p.eta_seconds) : null],
    ["Last checkpoint", p.checkpoint !== null ? `step ${p.checkpoint}` : p.is_logged ? null : goesOn ? "none yet" : "none"],
    ["Reward", p.reward == null ? null : number(p.reward)],
    ["Loss", p.loss == null ? null : number(p.loss)],
    heldOut(p.eval, p.eval_is_reward),
    ["KL", p.kl == null ? null : number(p.kl)],
    ["Tokens/s", goesOn && p.tokens_per_second ? Math.round(p.tokens_per_second) : null],
    ["Step time", goesOn && p.step_seconds ? p.step_seconds < 100 ? `${p.step_seconds.toFixed(1)} s` : duration(p.step_seconds) : null],
  );
  rows.push(["Best value", bestOf(curves.best)]);
  return rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
}
