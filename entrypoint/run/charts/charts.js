// Draws the curves of the page and of the report. Their rows say which chart draws which, in which colours.
"use strict";

const HEIGHT = 190;
const isTime = name => /^(busy|memory)\/(least|mean|most)$/.test(name);
const hour = time => clock(1000 * time).slice(0, 5);
const TOUCH = 0.01, MOSTLY = 0.9, PIECE = 10; // share of a chart's span; share of the points; pixels
const RAW = "59"; // opacity of a curve behind its smoothed one, of 255, as hexadecimal digits

/** The charts inside one element, by groups. */
class Charts {
  #place; #group; #order = []; #rows = []; #weight = 0; drawn = new Map();

  /** `group`: makes the element of a group, by its name and whether it is the first; its last child gets the charts. */
  constructor(place, group) {
    this.#place = place;
    this.#group = group;
  }

  /** Draw these rows, each with `steps`, `series` and `charts`, in place of those drawn before. */
  show(...rows) {
    this.#rows = rows;
    const wanted = rows.flatMap(known => known.charts.map(chart => [chart, known]))
      .map(([chart, known]) => [{...chart, metrics: chart.metrics.filter(({name}) => known.series[name]?.some(value => value !== null))}, known])
      .filter(([chart]) => chart.metrics.length);
    this.#order = rows.flatMap(known => known.charts);
    for (const [title, {key, plot, figure}] of this.drawn)
      if (!wanted.some(([chart]) => chart.title === title && this.#keyOf(chart) === key)) {
        plot.destroy();
        figure.remove();
        this.drawn.delete(title);
      }
    for (const [chart, known] of wanted) this.#draw(chart, known);
    for (const group of this.#place.children) if (group.dataset.group) group.hidden = !group.querySelector("figure");
  }

  /** Draw the curves smoothed by this weight, with the raw ones behind; 0: only these. */
  smooth(weight) {
    this.#weight = weight;
    this.show(...this.#rows);
  }

  /** Draw again in the colours and the width of now. */
  redraw() {
    for (const {plot, box} of this.drawn.values()) {
      if (box.clientWidth) plot.setSize({width: box.clientWidth, height: HEIGHT});
      plot.redraw(false);
    }
  }

  /** A chart with another key has other lines. */
  #keyOf(chart) {
    return [this.#weight > 0, ...chart.metrics.map(({name}) => name)].join();
  }

  #draw(chart, {steps, series}) {
    const raw = chart.metrics.map(({name}) => series[name]), averages = this.#weight ? raw.map(values => smoothed(values, this.#weight)) : [];
    const data = [steps, ...raw, ...averages];
    const known = this.drawn.get(chart.title) ?? this.#begin(chart, data);
    const first = data.length - raw.length, lines = this.#weight ? averages : raw;
    piled(lines).forEach(([place, count], n) => known.plot.series[first + n].dash = dashOf(chart.metrics[n], place, count));
    known.plot.setData(data);
    if (known.plot.cursor.idx === null || known.plot.cursor.idx === undefined) showNewest(known.plot);
    known.box.setAttribute("aria-label", `${chart.title}. ${chart.metrics.map((metric, place) => spoken(metric, steps, raw[place], averages[place])).join("; ")}`);
  }

  #begin(chart, data) {
    const box = make("div", {});
    box.setAttribute("role", "img");
    const figure = make("figure", {}, make("figcaption", {}, chart.title), box);
    const titles = this.#order.map(({title}) => title), group = this.#groupOf(chart.group);
    group.insertBefore(figure, [...group.children].find(other => titles.indexOf(other.firstChild.textContent) > titles.indexOf(chart.title)) ?? null);
    const plot = new uPlot(options(chart.metrics, box.clientWidth, this.#weight > 0), data, box);
    new ResizeObserver(() => box.clientWidth && plot.setSize({width: box.clientWidth, height: HEIGHT})).observe(box);
    const made = {key: this.#keyOf(chart), plot, figure, box};
    this.drawn.set(chart.title, made);
    return made;
  }

  /** The element that has the charts of a group. */
  #groupOf(name) {
    const known = [...this.#place.children], names = this.#order.map(({group}) => group);
    const found = known.find(group => group.dataset.group === name);
    if (found) return found.lastChild;
    const made = this.#group(name, names[0] === name);
    made.dataset.group = name;
    this.#place.insertBefore(made, known.find(other => names.indexOf(other.dataset.group) > names.indexOf(name)) ?? null);
    return made.lastChild;
  }
}

/**
 * Pure: for each curve its place in the pile of curves that lie on each other, from below, and how
 * many these are: [0, 1] if no other lies on it.
 */
function piled(lines) {
  const known = lines.flat().filter(value => typeof value === "number"), limit = TOUCH * (Math.max(...known) - Math.min(...known));
  const piles = [];
  for (const line of lines) {
    const pile = piles.find(([lowest]) => liesOn(line, lowest, limit));
    pile ? pile.push(line) : piles.push([line]);
  }
  return lines.map(line => piles.find(pile => pile.includes(line))).map((pile, n) => [pile.indexOf(lines[n]), pile.length]);
}

/** Pure: whether two curves are nowhere further apart than the limit, or nearly nowhere. */
function liesOn(one, other, limit) {
  const both = one.flatMap((value, n) => typeof value === "number" && typeof other[n] === "number" ? [Math.abs(value - other[n])] : []);
  return both.length > 0 && both.filter(distance => distance <= limit).length >= MOSTLY * both.length;
}

/** Pure: the dash of a curve in a pile: the ones above have gaps in which each one below is seen. */
const dashOf = ({dash}, place, count) => place ? [PIECE * (count - place), PIECE * place] : dash?.length ? dash : undefined;

/** Between two marks of an axis of steps: there is no half of a step. */
const WHOLE = Array.from({length: 10}, (_, power) => [1, 2, 5].map(digit => digit * 10 ** power)).flat();

/** Pure: the range of a chart's values. Nothing but 0, or nothing but 1, is drawn as a share. */
const rangeOf = (least, most) => least !== null && (Math.max(-least, most) < NOISE || least === most && most === 1) ? [-0.05, 1.05] : least === null ? [least, most] : uPlot.rangeNum(least, most, 0.1, true);

/** Say the newest values below a chart that no pointer is on. */
const showNewest = plot => plot.setLegend({idxs: plot.data.map(values => values.findLastIndex(value => value !== null && value !== undefined))}, false);

/** Pure: a curve in words, for those who do not see it. `averages`: its smoothed values, if it is smoothed. */
function spoken({name, label}, steps, values, averages) {
  const known = values.flatMap((value, place) => value === null ? [] : [[steps[place], value]]);
  const when = step => isTime(name) ? `at ${moment(1000 * step)}` : `at step ${step}`;
  const say = ([step, value]) => `${number(value)} ${when(step)}`;
  const last = averages?.findLast(value => value !== null);
  return `${label}: ${say(known[0])}, ${say(known.at(-1))}${averages ? `, smoothed ${number(last)}` : ""}`;
}

/**
 * A value below its chart; with its step, if that is not the step that the legend names. `raw`: the
 * number of the line with the raw values, if this one's are smoothed.
 */
function inLegend(plot, value, place, raw) {
  if (value === null || value === undefined) return "--";
  const isOlder = place !== undefined && place !== null && place !== plot.legend.idxs[0] && !plot.scales.x.time;
  const said = raw ? `${number(value)} smoothed, ${number(plot.data[raw][place])} raw` : number(value);
  return isOlder ? `${said} at step ${plot.data[0][place]}` : said;
}

function options(metrics, width, isSmoothed) {
  const byTime = isTime(metrics[0].name), behind = isSmoothed ? metrics.length : 0;
  const line = {stroke: () => getComputedStyle(document.body).color, grid: {stroke: "#8884", width: 1}, ticks: {stroke: "#8884", width: 1}};
  return {
    width: width || 300,
    height: HEIGHT,
    legend: {markers: {dash: (plot, place) => plot.series[place].dash ? "dashed" : "solid"}},
    hooks: {ready: [showNewest], setSeries: [(plot, place, {show}) => show !== undefined && place > behind && behind && plot.setSeries(place - behind, {show}, false)]},
    scales: {x: {time: byTime}, y: {range: (_, least, most) => rangeOf(least, most)}},
    axes: [byTime ? {...line, values: (_, times) => times.map(hour)} : {...line, incrs: WHOLE}, {...line, size: 64, values: (_, values, place, space, step) => ticks(values, step)}],
    series: [byTime ? {label: "time", value: (_, time) => time ? clock(1000 * time) : "--"} : {label: "step"}, ...metrics.slice(0, behind).map(({label, colour}) => ({
      label, class: "raw", stroke: `${colour}${RAW}`, width: 1.5, spanGaps: true, points: {show: false},
    })), ...metrics.map(({name, label, colour, dash}) => ({
      label, value: (plot, value, series, place) => inLegend(plot, value, place, isSmoothed && series - behind), stroke: colour, dash: dashOf({dash}, 0), width: 2, spanGaps: true,
      points: {show: (plot, place) => name.startsWith("eval/") || plot.data[place].filter(value => value !== null).length < 2},
    }))],
  };
}
