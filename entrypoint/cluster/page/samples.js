// Some samples of the newest steps: what the policy read and wrote, and its rewards.
"use strict";

let samplesOf = null;

async function refreshSamples(job, step) {
  if (!by("samples").open || samplesOf === `${job} ${step}`) return;
  const answer = await ask(`v1/samples?${new URLSearchParams(job ? {job} : {})}`);
  if (!answer.ok) return;
  samplesOf = `${job} ${step}`;
  const rows = (await answer.json()).samples;
  by("rows").replaceChildren(...rows.reverse().map(sample));
  by("rows").hidden = !rows.length;
  by("no-rows").hidden = rows.length > 0;
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
