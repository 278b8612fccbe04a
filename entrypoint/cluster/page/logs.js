// The end of one log, as it grows.
"use strict";

const TAIL_BYTES = 32768, MOST_CHARACTERS = 400000, NAMES_SECONDS = 10;
let log = {name: "", offset: -TAIL_BYTES}, namesOf, namedAt = -Infinity;

/** Read a log from its end: another one, or the one of this name of another job. */
function beginLog(name) {
  log = {name, offset: -TAIL_BYTES};
  by("log").textContent = "";
  by("log").hidden = !name;
}

async function refreshLogs(job) {
  const query = job ? {job} : {};
  if (namesOf !== job || seconds(namedAt) >= NAMES_SECONDS) await refreshNames(job, query);
  if (log.name) await readLog(query);
}

/** List the logs. A large cluster has thousands, so this is not asked as often as the log. */
async function refreshNames(job, query) {
  const answer = await ask(`v1/logs?${new URLSearchParams(query)}`);
  if (!answer.ok) return;
  const names = (await answer.json()).logs;
  [namesOf, namedAt] = [job, performance.now()];
  const known = [...by("logs").options].map(option => option.value).slice(1);
  if (names.join() !== known.join()) {
    by("logs").replaceChildren(new Option("none", ""), ...names.map(name => new Option(name, name)));
    by("logs").value = names.includes(log.name) ? log.name : "";
  }
}

/** Pure: the name of a node's own log; "" if there is none of this name. */
function logOf({node, role}, names) {
  const own = role ? "head" : `worker-${node.replace(/^worker-/, "")}`;
  return names.has(own) ? own : "";
}

async function readLog(query) {
  const one = log;
  const path = `v1/logs/${encodeURIComponent(one.name)}?${new URLSearchParams({...query, offset: one.offset})}`;
  const answer = await ask(path);
  const {text, offset} = answer.ok ? await answer.json() : {}, box = by("log");
  if (!answer.ok || one !== log) return; // another one is read by now
  log.offset = offset;
  if (!text) return;
  const atEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 40;
  box.append(text);
  if (box.textContent.length > MOST_CHARACTERS) box.textContent = box.textContent.slice(-MOST_CHARACTERS / 2);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

async function openLog(name) {
  by("logs").value = name;
  beginLog(name);
  await refreshLogs(shownJob).catch(() => {});
}

by("logs").addEventListener("change", () => openLog(by("logs").value));
