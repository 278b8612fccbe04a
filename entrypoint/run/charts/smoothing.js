// Smooths the curves of the page and of the report: one weight for all charts.
"use strict";

const MOST_SMOOTHING = 0.99;

/** Pure: the weight that a text says, such as one of an address; 0, which is off, for any other text. */
const weightOf = text => Math.min(MOST_SMOOTHING, Math.max(0, Number(text) || 0));

/**
 * Pure: the exponential moving average of the values that are there, as TensorBoard draws it. It is
 * divided by the sum of its weights: else its first values would be too near to 0.
 */
function smoothed(values, weight) {
  let sum = 0, rest = 1;
  return values.map(value => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    rest *= weight;
    return sum / (1 - rest);
  });
}

/** Sliders, one in each place, that have the same weight. */
class Smoothing {
  #sliders; #smooth;

  /** `smooth` gets the weight while a slider moves, `keep` once it stays. */
  constructor(places, smooth, keep = () => {}) {
    this.#smooth = smooth;
    this.#sliders = [...places].map(place => {
      const input = make("input", {type: "range", min: 0, max: MOST_SMOOTHING, step: 0.01, value: 0}), said = make("output", {}, "off");
      input.addEventListener("input", () => this.set(Number(input.value)));
      input.addEventListener("change", () => keep(Number(input.value)));
      place.append(make("label", {}, "Smoothing ", input), " ", said);
      return {input, said};
    });
  }

  set(weight) {
    for (const {input, said} of this.#sliders) [input.value, said.textContent] = [weight, weight ? weight.toFixed(2) : "off"];
    this.#smooth(weight);
  }
}
