// The flags in which the runs that lie over each other differ, as a table.
"use strict";

const flagsOf = new Map();
const tellsFlags = ({flags}) => Object.keys(flags).length > 0;
let drawnFlags = "";

/** Ask for the flags of runs. A job has them once it begins. */
async function refreshFlags(ids) {
  for (const id of ids) {
    if (tellsFlags({flags: flagsOf.get(id) ?? {}})) continue;
    const answer = await ask(`v1/state?${new URLSearchParams({job: id, brief: 1})}`);
    if (answer.ok) flagsOf.set(id, (await answer.json()).flags ?? {});
  }
}

/** Names of flags that say where a run lies, and how it is called: they differ whatever is tried. */
const PLACES = /(?:^|[._])(?:run_dir|output_dir|ckpt_path|save_path|save_dir|default_local_dir|use_tensorboard|tensorboard_dir|hub_model_id|\w*run_name|run_group|experiment_name|exp_name|\w*port)$/;
const LOOPBACK = /\b(127\.\d+\.\d+\.\d+|localhost):\d+/g;

/** Pure: a value without what is of the run's own place: its directory, and ports of this machine. */
function withoutPlace(text, {id, path}) {
  const own = path.endsWith(id) ? path.slice(0, path.length - id.length) + id.split("/")[0] : path;
  return text.replaceAll(own, "RUN").replace(LOOPBACK, "$1");
}

/** Pure: the flags that are not the same in all runs which tell theirs: the name, and a value of each run. */
function differing(those) {
  const telling = those.filter(tellsFlags), has = (run, name) => Object.hasOwn(run.flags, name);
  const names = [...new Set(telling.flatMap(({flags}) => Object.keys(flags)))].sort();
  const given = (run, name) => has(run, name) ? withoutPlace(run.flags[name], run) : null;
  return names.filter(name => !PLACES.test(name) && new Set(telling.map(run => given(run, name))).size > 1).map(name => {
    const trainers = telling.filter(run => has(run, name)).map(({recipe}) => recipe);
    const absent = run => !tellsFlags(run) ? "unknown" : trainers.includes(run.recipe) ? "default" : "–";
    return {name: name || "command", values: those.map(run => has(run, name) ? {text: run.flags[name] || "no value"} : {text: absent(run), isAbsent: true})};
  });
}

/** Show in which flags these runs differ: a row a flag, a column a run in the colour of its curves. */
function showFlags(those) {
  const known = those.map(run => ({...run, flags: flagsOf.get(run.id) ?? {}})), rows = differing(known);
  const key = JSON.stringify([rows, those.map(run => [titleOf(run), chosen.get(run.id)])]);
  by("differing").hidden = known.filter(tellsFlags).length < 2;
  if (key === drawnFlags) return; // a reader may select a value
  drawnFlags = key;
  by("no-difference").hidden = rows.length > 0;
  by("flags-table").hidden = !rows.length;
  by("flags-runs").replaceChildren(make("th", {scope: "col"}, "flag"), ...those.map(run => make("th", {scope: "col"}, lineOf(run.id), " ", titleOf(run))));
  by("flag-rows").replaceChildren(...rows.map(({name, values}) => make("tr", {}, make("th", {scope: "row"}, name),
    ...values.map(({text, isAbsent}) => make("td", {className: isAbsent ? "absent" : ""}, text)))));
}
