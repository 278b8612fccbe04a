// The timeline: the attempts, and the journal's newest events, each once, the newest first.
"use strict";

const KEPT = 500, SHOWN = 200, MOST_ATTEMPTS = 5;
const ROUTINE = ["checkpoint", "eval", "best", "check-in", "layout", "files", "download", "command", "step-found", "ready"];
const REPAIRS = new Set(["rank-replaced", "engine-replaced", "engine-left-out"]);
const BY_HEAD = {grow: "more workers", swap: "a slow node"};
const COLOURS = {failure: "bad", refused: "bad", "oom-kill": "bad", outcome: "good", decision: "warn", "rank-behind": "warn", "rank-replaced": "warn", "engine-replaced": "warn", "engine-left-out": "warn", "reward-server": "warn", "node-over": "warn", "node-lost": "bad", "node-back": "good", straggler: "warn", "straggler-stays": "warn", "straggler-replaced": "warn", "node-change": "warn", "straggler-over": "good", "head-moved": "warn", service: "warn", "layout-warning": "warn", "upload-failed": "warn", "push-failed": "warn"};
let source, entries = [], due = false, drawnLost = false;

/** Follow the journal of a submitted job, or of the head's own run. */
function listen(job) {
  source?.close();
  entries = [];
  draw();
  const without = by("routine").checked ? ["step"] : ["step", ...ROUTINE];
  const query = new URLSearchParams({without: without.join(), last: KEPT, ...(job ? {job} : {})});
  const opened = source = new EventSource(`v1/events?${query}`);
  opened.onmessage = message => {
    entries.push(JSON.parse(message.data));
    if (entries.length > 2 * KEPT) entries = entries.slice(-KEPT);
    soon();
  };
  opened.onerror = () => {
    // A browser connects again by itself, and asks for what follows the last event. After an answer
    // that is not a stream it gives up: then all is asked for again, but not with a key that is refused.
    if (opened.readyState === EventSource.CLOSED && opened === source)
      setTimeout(() => opened === source && !isRefused && listen(job), 3000);
  };
}

function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; draw(); });
}

function draw() {
  const shown = entries.slice(-SHOWN).reverse();
  drawnLost = Boolean(state) && isHeadLost(state);
  by("attempts").replaceChildren(...attempts(entries, drawnLost).slice(-MOST_ATTEMPTS).reverse()
    .map(one => make("li", {className: one.colour}, ...spokenAttempt(one))));
  if (state) showVerdict(state);
  by("events").replaceChildren(...shown.map(event => make("li", {},
    timeOf(event.at, moment(event.at)),
    make("span", {className: colourOf(event)}, `${event.node}: ${event.sentence}`),
  )));
  by("older").textContent = entries.length > SHOWN ? "rollcall events shows the older ones." : "";
}

function colourOf(event) {
  if (event.kind === "outcome") return ENDS[event.details.outcome]?.[1] ?? "bad";
  return COLOURS[event.kind] ?? "";
}

/** The sentence with which the run has ended. */
const ending = () => entries.findLast(event => event.kind === "outcome")?.sentence ?? "";

/** Pure: the command that starts the head again; undefined if it is not known. */
const resumption = events => events.findLast(event => event.kind === "start")?.details.resume;

/** Pure: the end of a run in a directory that no head tells any more: right after its last event. */
function endAfter(events, at, directory) {
  const last = events.findLast(event => event.kind === "start" || event.kind === "outcome");
  const isNew = last?.kind === "outcome" && Date.parse(last.at) >= Date.parse(at) - 3000;
  if (!isNew) return null;
  const failure = last.details.outcome === "failed" && events.findLast(event => event.kind === "failure");
  const end = {...last.details, ended: last.at, resume: resumption(events), remedy: `rollcall report ${quoted(directory)} says what to do.`};
  const {failure: kind, evidence, place} = failure?.details ?? {};
  const cause = ["unknown", "code"].includes(kind) && evidence || failure?.sentence;
  return failure ? {...end, cause, place, log: `attempt-${failure.attempt}`} : end;
}

/** Pure: the attempts that the events know of, the oldest first. `isLost`: no head leads the last. */
function attempts(events, isLost) {
  const found = [];
  for (const event of events) {
    const last = found.at(-1);
    if (event.kind === "attempt") found.push({number: event.attempt ?? found.length + 1, began: event.at, repairs: 0, colour: "busy", end: "runs", lost: event.details.by === "trainer" ? "trainer_lost" : "head_lost"});
    else if (!last || last.ended) continue;
    else if (event.kind === "start") Object.assign(last, {ended: event.at, colour: "bad", end: last.lost});
    else if (event.kind === "decision" && BY_HEAD[event.details.answer]) Object.assign(last, {ended: event.at, end: BY_HEAD[event.details.answer]});
    else if (REPAIRS.has(event.kind)) last.repairs += 1;
    else if (event.kind === "failure") Object.assign(last, {ended: event.at, colour: "bad", end: event.details.failure});
    else if (event.kind === "outcome") Object.assign(last, {ended: event.at, colour: colourOf(event), end: event.details.outcome});
  }
  if (isLost && found.length && !found.at(-1).ended) Object.assign(found.at(-1), {colour: "bad", end: found.at(-1).lost});
  return found;
}

function spokenAttempt({number, began, ended, repairs, end}) {
  const lasted = ended ? `, ${duration((Date.parse(ended) - Date.parse(began)) / 1000)}` : "";
  const repaired = repairs ? ` · ${repairs} repair${repairs > 1 ? "s" : ""}` : "";
  return [`Attempt ${number} · `, timeOf(began, moment(began)), ...(ended ? ["–", timeOf(ended, moment(ended))] : []), `${lasted} · ${end}${repaired}`];
}

/** Pure: the sentence of a failure, without the class "unknown", which would deny the cause. */
const withoutUnknown = ({details, sentence}) => details.failure === "unknown" ? sentence.replace(/^unknown: /, "") : sentence;

/** Pure: the failures of a failed run before the one that has ended it, the newest first. */
function earlier(events, {outcome}) {
  if (outcome.outcome !== "failed") return [];
  const failures = events.slice(events.findLastIndex(event => event.kind === "start") + 1).filter(event => event.kind === "failure");
  return failures.slice(0, -1).reverse().map(event => ["bad", `attempt ${event.attempt} failed, too, at ${moment(event.at)}: ${withoutUnknown(event)}`]);
}

/** Pure: what the head did about the failures of the last hour, and what to do if no step came since. */
function lately(events, {at, last_failure: since}) {
  const recent = events.filter(event => Date.parse(at) - Date.parse(event.at) < 3600e3);
  const failures = recent.filter(event => event.kind === "failure");
  if (!failures.length) return [];
  const last = failures.at(-1), answer = recent.findLast(event => event.kind === "decision");
  const often = failures.length > 1 ? `${failures.length} attempts failed in the last hour, the last one` : "an attempt failed";
  const done = answer && Date.parse(answer.at) >= Date.parse(last.at) ? ` The head's answer: ${answer.sentence}.` : "";
  const toDo = since?.to_do ? ` What to do: ${since.to_do}` : "";
  return [[since?.in_vain > 1 ? "bad" : "warn", `${often} at ${moment(last.at)}: ${withoutUnknown(last)}.${done}${toDo}`]];
}
