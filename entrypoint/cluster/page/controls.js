// What a reader sets for all charts: smoothing, which the address keeps, and folded groups, which the session keeps.
"use strict";

const NARROW = matchMedia("(max-width: 40rem)"), GROUPS = "rollcall-groups";
const allCharts = [];

const inAddress = () => new URLSearchParams(location.hash.slice(1));

/** The address with these values of a name in place of those that it has. */
function addressWith(name, ...values) {
  const known = inAddress();
  known.delete(name);
  for (const value of values) known.append(name, value);
  return `#${known}`;
}

const keepInAddress = (name, ...values) => history.replaceState(null, "", addressWith(name, ...values));

/** Which groups the reader has folded or unfolded in this session: key → whether it is open. */
function groupsOfSession() {
  try {
    return JSON.parse(sessionStorage.getItem(GROUPS)) ?? {};
  } catch {
    return {}; // the browser keeps nothing
  }
}

function keepGroup(key, isOpen) {
  try {
    sessionStorage.setItem(GROUPS, JSON.stringify({...groupsOfSession(), [key]: isOpen}));
  } catch {
    // It is folded or not until the page is loaded again.
  }
}

/** Have a `<details>` be as the reader has left it; else open, or not. */
function remembered(details, key, isOpen) {
  details.open = groupsOfSession()[key] ?? isOpen;
  details.querySelector("summary").addEventListener("click", () => keepGroup(key, !details.open));
  return details;
}

/** Charts in groups that fold. On a phone only the first one is open at first. */
function foldedCharts(place) {
  const made = new Charts(by(place), (group, isFirst) =>
    remembered(make("details", {}, make("summary", {}, make("h3", {}, group)), make("div", {className: "charts"})), `${place} ${group}`, isFirst || !NARROW.matches));
  allCharts.push(made);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => made.redraw());
  return made;
}

const smoothing = new Smoothing(document.querySelectorAll(".smoothing"), weight => {
  for (const charts of allCharts) charts.smooth(weight);
}, weight => {
  keepInAddress("smoothing", ...(weight ? [weight] : []));
  showRuns(); // their links have it
});
