// The timeline: the journal's newest events, each once, the newest first.
"use strict";

const KEPT = 500, SHOWN = 200;
const ROUTINE = new Set(["checkpoint", "eval", "best", "check-in", "layout", "files", "download", "service", "command", "step-found"]);
const COLOURS = {failure: "bad", refused: "bad", "oom-kill": "bad", outcome: "good", decision: "warn", "rank-replaced": "warn", "engine-replaced": "warn", "engine-left-out": "warn", "reward-server": "warn", "node-over": "warn", "layout-warning": "warn", "upload-failed": "warn"};
let source, entries = [], due = false;

/** Follow the journal of a submitted job, or of the head's own run. */
function listen(job) {
  source?.close();
  entries = [];
  draw();
  const query = new URLSearchParams({without: "step", last: KEPT, ...(job ? {job} : {})});
  const opened = source = new EventSource(`v1/events?${query}`);
  opened.onmessage = message => {
    entries.push(JSON.parse(message.data));
    if (entries.length > 2 * KEPT) entries = entries.slice(-KEPT);
    soon();
  };
  opened.onerror = () => {
    // A browser connects again by itself, and asks for what follows the last event. After an answer
    // that is no stream it gives up: then all is asked for again.
    if (opened.readyState === EventSource.CLOSED && opened === source)
      setTimeout(() => opened === source && listen(job), 3000);
  };
}

function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; draw(); });
}

function draw() {
  const wanted = by("faults").checked ? entries.filter(event => !ROUTINE.has(event.kind)) : entries;
  const shown = wanted.slice(-SHOWN).reverse();
  by("events").replaceChildren(...shown.map(event => make("li", {},
    make("time", {dateTime: event.at, title: event.at}, clock(event.at)),
    make("span", {className: colourOf(event)}, `${event.node}: ${event.sentence}`),
  )));
  by("older").textContent = wanted.length > SHOWN ? "rollcall events shows the older ones." : "";
}

function colourOf(event) {
  if (event.kind === "outcome") return event.details.outcome === "finished" ? "good" : "bad";
  return COLOURS[event.kind] ?? "";
}

/** The sentence with which the run has ended. */
const ending = () => entries.findLast(event => event.kind === "outcome")?.sentence ?? "";
