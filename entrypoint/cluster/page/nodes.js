// The roll: counts, a filter, and at most MOST_ROWS rows.
"use strict";

const MOST_ROWS = 100;

function stateOf(node) {
  if (!node.present) return [`silent for ${duration(node.silent_seconds)}`, "bad"];
  return node.joined ? ["joined", "good"] : ["starting Ray", "busy"];
}

function has(node) {
  const {cpus, gpus, memory_bytes: memory} = node.inventory;
  const gpu = gpus ? `${gpus} GPU${gpus > 1 ? "s" : ""}${node.versions.gpu ? ` (${node.versions.gpu})` : ""}` : "";
  return [gpu, cpus && `${cpus} CPUs`, memory && `${(memory / 2 ** 30).toFixed(0)} GiB`].filter(Boolean).join(", ");
}

const checks = node => node.warnings.length ? `not passed: ${node.warnings.join(", ")}` : "passed";
const versions = node => Object.entries(node.versions).map(([name, version]) => `${name} ${version}`).join(", ");
const wellness = node => !node.present ? 0 : !node.joined ? 1 : node.warnings.length ? 2 : 3;

/** Show the head and the workers: first those about which there is something to say. */
function showNodes(state) {
  const counts = {};
  for (const node of state.nodes) {
    const word = !node.present ? "silent" : node.joined ? "joined" : "starting Ray";
    counts[word] = (counts[word] ?? 0) + 1;
  }
  const refused = Object.keys(state.refused).length;
  const said = [`${state.present} of ${state.expected_workers} workers are there`];
  for (const word of ["silent", "starting Ray"]) if (counts[word]) said.push(`${counts[word]} ${word}`);
  if (refused) said.push(`${refused} refused`);
  by("counts").textContent = said.join(" · ");
  const wanted = by("filter").value.trim().toLowerCase();
  const rows = [{...state.head_node, role: "head"}, ...[...state.nodes].sort((a, b) => wellness(a) - wellness(b))]
    .map(node => [node, node.role ? ["the head", "good"] : stateOf(node)])
    .filter(([node, [here]]) => !wanted || `${node.node} ${node.address} ${here} ${checks(node)} ${versions(node)}`.toLowerCase().includes(wanted));
  const shown = rows.slice(0, MOST_ROWS);
  by("shown").textContent = shown.length < rows.length ? `${shown.length} of ${rows.length} nodes: filter to find others` : "";
  by("nodes").replaceChildren(...shown.map(([node, [here, colour]]) => make("tr", {},
    make("td", {}, `${node.node} `, make("small", {}, node.address)),
    make("td", {className: colour}, here),
    make("td", {}, has(node)),
    make("td", {className: node.warnings.length ? "warn" : ""}, checks(node)),
    make("td", {}, versions(node)),
  )));
}
