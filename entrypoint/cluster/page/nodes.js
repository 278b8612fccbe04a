// The roll: counts, a filter, and at most MOST_ROWS rows.
"use strict";

const MOST_ROWS = 100;
let drawnNodes = "";

function stateOf(node, spares) {
  if (!node.present) return [`silent for ${duration(node.silent_seconds)}`, "bad"];
  if (spares.includes(node.node)) return ["spare", "good"];
  return node.joined ? ["joined", "good"] : ["starting Ray", "busy"];
}

function has(node) {
  const {cpus, gpus, memory_bytes: memory} = node.inventory;
  const gpu = gpus ? `${gpus} GPU${gpus > 1 ? "s" : ""}${node.versions.gpu ? ` (${node.versions.gpu})` : ""}` : "";
  return [gpu, cpus && `${cpus} CPUs`, memory && `${(memory / 2 ** 30).toFixed(0)} GiB`].filter(Boolean).join(", ");
}

/** Pure: the spares that are there, in words; "" if none are wanted. */
function sparesOf({spares = [], expected_spares: wanted = 0}) {
  if (!wanted) return "";
  const count = spares.length < wanted ? `${spares.length} of ${wanted}` : `${spares.length}`;
  return `${count} spare${count === "1" ? "" : "s"}`;
}

/** Pure: the present use of a node's GPUs in words; "" if the node does not tell it. */
function use({gpu_use: {busy, memory, total}}) {
  if (!memory) return "";
  const range = ([least, , most], unit) => least === most ? `${least} ${unit}` : `${least}–${most} ${unit}`;
  return [busy && `${range(busy, "%")} busy`, `${range(memory, `of ${total} GB`)} used`].filter(Boolean).join(", ");
}

const checks = node => node.warnings.length ? node.warnings.map(check => said(node, check)).join("; ") : "passed";
const versions = node => Object.entries(node.versions).filter(([, version]) => version).map(([name, version]) => `${name} ${version}`).join(", ");
const wellness = node => !node.present ? 0 : !node.joined ? 1 : node.warnings.length ? 2 : 3;

/** Show the head and the workers: first those about which there is something to say. */
function showNodes(state) {
  const counts = {};
  for (const node of state.nodes) {
    const word = !node.present ? "silent" : node.joined ? "joined" : "starting Ray";
    counts[word] = (counts[word] ?? 0) + 1;
  }
  const refused = Object.keys(state.refused).length;
  const said = [
    state.expected_workers
      ? `${state.present} of ${state.expected_workers} workers are there`
      : "a cluster of one node",
  ];
  for (const word of ["silent", "starting Ray"]) if (counts[word]) said.push(`${counts[word]} ${word}`);
  if (sparesOf(state)) said.push(sparesOf(state));
  if (refused) said.push(`${refused} refused`);
  by("counts").textContent = said.join(" · ");
  const wanted = by("filter").value.trim().toLowerCase();
  const rows = [{...state.head_node, role: "head"}, ...[...state.nodes].sort((a, b) => wellness(a) - wellness(b))]
    .map(node => [node, node.role ? ["the head", "good"] : stateOf(node, state.spares ?? [])])
    .filter(([node, [here]]) => !wanted || `${node.node} ${node.address} ${here} ${checks(node)} ${versions(node)}`.toLowerCase().includes(wanted));
  const shown = rows.slice(0, MOST_ROWS);
  by("shown").textContent = shown.length < rows.length ? `${shown.length} of ${rows.length} nodes: filter to find others` : "";
  const logs = new Set([...by("logs").options].map(option => option.value));
  const cells = shown.map(([node, [here, colour]]) => [
    [node.node, node.address, logOf(node, logs)],
    [here, colour], [[has(node), use(node)].filter(Boolean).join(": ")], [checks(node), node.warnings.length ? "warn" : ""], [versions(node)],
  ]);
  const key = JSON.stringify(cells);
  if (key === drawnNodes) return; // a reader may be on a button
  drawnNodes = key;
  const at = document.activeElement?.dataset.log;
  by("nodes").replaceChildren(...cells.map(([[name, address, log], ...others]) => make("tr", {},
    make("td", {}, `${name} `, make("small", {}, address), ...(log ? [" ", logButton(name, log)] : [])),
    ...others.map(([text, className = ""]) => make("td", {className}, text)),
  )));
  if (at) by("nodes").querySelector(`[data-log="${CSS.escape(at)}"]`)?.focus();
}

function logButton(name, log) {
  const button = make("button", {type: "button", ariaLabel: `Log of ${name}`}, "Log");
  button.dataset.log = log;
  button.addEventListener("click", () => {
    openLog(log).then(() => by("log").scrollIntoView({block: "nearest"})); // it has its height by then
    by("log").focus();
  });
  return button;
}
