// The end of one log, as it grows.
"use strict";

const TAIL_BYTES = 32768, MOST_CHARACTERS = 400000;
let log = {name: "", offset: -TAIL_BYTES};

/** Read a log from its end: another one, or the one of this name of another job. */
function beginLog(name) {
  log = {name, offset: -TAIL_BYTES};
  by("log").textContent = "";
  by("log").hidden = !name;
}

async function refreshLogs(job) {
  const query = job ? {job} : {};
  const answer = await ask(`v1/logs?${new URLSearchParams(query)}`);
  if (!answer.ok) return;
  const names = (await answer.json()).logs;
  const known = [...by("logs").options].map(option => option.value).slice(1);
  if (names.join() !== known.join()) {
    by("logs").replaceChildren(new Option("none", ""), ...names.map(name => new Option(name, name)));
    by("logs").value = names.includes(log.name) ? log.name : "";
  }
  if (log.name) await readLog(query);
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

by("logs").addEventListener("change", () => {
  beginLog(by("logs").value);
  refreshLogs(shownJob).catch(() => {});
});
