// The runs that lie over each other, side by side: their final values, and the flags in which they differ.
"use strict";

let drawnComparison = "";

/** Ask for the comparison of these runs, and show it. */
async function refreshComparison(those) {
  if (those.length < 2) return void (by("final").hidden = by("differing").hidden = true);
  const answer = await ask(`v1/comparison?${new URLSearchParams(those.map(run => ["job", run.id]))}`);
  if (answer.ok && those.every(run => chosen.has(run.id))) showComparison(await answer.json());
}

function showComparison({runs: compared, values, flags}) {
  by("final").hidden = compared.length < 2;
  by("differing").hidden = compared.filter(run => run.flags_known).length < 2;
  const titles = compared.map(({id, name}) => [id, titleOf(runs.find(run => run.id === id) ?? {id, name})]);
  const key = JSON.stringify([values, flags, titles.map(([id, title]) => [title, chosen.get(id)])]);
  if (key === drawnComparison) return; // a reader may select a value
  drawnComparison = key;
  by("no-difference").hidden = flags.length > 0;
  by("flags-table").hidden = !flags.length;
  fill(by("final-table"), "value", titles, values.map(({title, cells}) => [title, cells]));
  fill(by("flags-table"), "flag", titles, flags.map(({name, cells}) => [name, cells]));
}

/** Fill a table: a row for each value or flag, a column for each run in the colour of its curves. */
function fill(place, first, titles, rows) {
  const head = make("tr", {}, make("th", {scope: "col"}, first), ...titles.map(([id, title]) => make("th", {scope: "col"}, lineOf(id), " ", ...breakable(title))));
  const body = rows.map(([name, cells]) => make("tr", {}, make("th", {scope: "row"}, ...breakable(name)),
    ...cells.map(({text, is_absent, value}) => make("td", {className: is_absent || value === null ? "absent" : ""}, ...breakable(text)))));
  place.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}
