// The end of one log, as it grows.
"use strict";

const TAIL_BYTES = 32768, MOST_CHARACTERS = 400000;
let log = {name: "", offset: -TAIL_BYTES, job: ""};

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
  const name = log.name;
  const path = `v1/logs/${encodeURIComponent(name)}?${new URLSearchParams({...query, offset: log.offset})}`;
  const answer = await ask(path);
  if (!answer.ok || name !== log.name) return;
  const {text, offset} = await answer.json(), box = by("log");
  log.offset = offset;
  if (!text) return;
  const atEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 40;
  box.append(text);
  if (box.textContent.length > MOST_CHARACTERS) box.textContent = box.textContent.slice(-MOST_CHARACTERS / 2);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

by("logs").addEventListener("change", () => {
  log = {name: by("logs").value, offset: -TAIL_BYTES};
  by("log").textContent = "";
  by("log").hidden = !log.name;
  refreshLogs(shownJob).catch(() => {});
});
