// Some samples of the newest steps: what the policy read and wrote, and its rewards.
"use strict";

const UNREAD = "Nobody answers who could read samples now. samples.jsonl in the run directory has them: rollcall open RUN shows them.";
let samplesOf = null;

async function refreshSamples(job, step) {
  if (!by("samples").open || samplesOf === `${job} ${step}`) return;
  const answer = await ask(`v1/samples?${new URLSearchParams(job ? {job} : {})}`).catch(() => null);
  if (job !== shownJob) return;
  if (!answer?.ok) return sayNoSamples(UNREAD);
  samplesOf = `${job} ${step}`;
  const rows = (await answer.json()).samples;
  by("rows").replaceChildren(...rows.reverse().map(sample));
  by("rows").hidden = !rows.length;
  sayNoSamples(rows.length ? "" : "The run has no samples yet.");
}

/** Say why there are none; samples that were read before stay. "": there are some. */
function sayNoSamples(why) {
  by("no-rows").textContent = why;
  by("no-rows").hidden = !why;
}

/** One sample. Its texts may say anything: they stay text. */
function sample(row) {
  const reward = typeof row.reward === "number" ? number(row.reward) : `none: ${row.error ?? "it failed"}`;
  const parts = Object.entries(row.metrics).map(([name, value]) => `${name} ${value}`);
  const title = [`Step ${row.step}`, `reward ${reward}`, ...parts, row.stop && `ended by ${row.stop}`].filter(Boolean).join(" · ");
  const text = (label, words) => [make("h4", {}, label), make("pre", {}, String(words))];
  const turns = row.turns.flatMap(turn => [
    ...(turn.turns_left_out ? [make("p", {}, `${turn.turns_left_out} turns are left out`)] : text("The policy wrote", turn.reply)),
    ...turn.tool_calls.flatMap(call => text(`It called ${call.name}`, call.error ?? call.arguments)),
    ...(turn.answer === undefined ? [] : text("The environment answered", turn.answer)),
  ]);
  const label = row.label === null || row.label === undefined ? [] : text("The label", row.label);
  return make("article", {}, make("h3", {}, title), ...text("The prompt", row.prompt), ...turns, ...label);
}

by("samples").addEventListener("toggle", () => refreshSamples(shownJob, state?.progress?.step).catch(() => {}));
