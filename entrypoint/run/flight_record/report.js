// Draws the curves that the report has embedded. On paper, all that is folded up is open, and light.
"use strict";

const LEARNING = "Learning";
const reported = [...document.querySelectorAll(".curves")].map(place => {
  const charts = new Charts(place, group => {
    const grid = make("div", {className: "charts"});
    return group === LEARNING ? make("div", {}, grid) : make("details", {}, make("summary", {}, group), grid);
  });
  charts.show(JSON.parse(place.querySelector("script").textContent));
  return charts;
});
const sliders = reported.map((_, number) => {
  const slider = make("div", {className: "smoothing"});
  document.querySelectorAll(".curves")[number].before(slider);
  return slider;
});
new Smoothing(sliders, weight => {
  for (const charts of reported) charts.smooth(weight);
});
let unfolded = [];

function redraw() {
  for (const charts of reported) charts.redraw();
}

addEventListener("beforeprint", () => {
  document.documentElement.style.colorScheme = "light";
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const details of unfolded) details.open = true;
  redraw();
});
addEventListener("afterprint", () => {
  document.documentElement.style.colorScheme = "";
  for (const details of unfolded) details.open = false;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
