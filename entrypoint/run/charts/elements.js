// What the page and the report use to make elements and to write times and numbers. Text is never HTML.
"use strict";

/** An element of one kind with properties and children; strings among them become text. */
function make(kind, properties, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

/** Pure: a text that may break after / and _ and between names, and that is copied as it is. */
const breakable = text => String(text).split(/(?<=[/_]|[a-z][.,:=](?=[a-z]))/i).flatMap((part, place) => place ? [document.createElement("wbr"), part] : [part]);

const clock = at => new Date(at).toLocaleTimeString([], {hourCycle: "h23"});
const NOISE = 1e-12; // what is less is 0 but for rounding
const LEAST_PLAIN = 1e-3; // below it a number is written with an exponent
const plain = value => (value || 0).toLocaleString([], {maximumSignificantDigits: 15}); // -0 is 0

/** Pure: a number with so many digits that count, unless it is 0 but for rounding. */
function number(value, digits = 4) {
  const rounded = Math.abs(value) < NOISE ? 0 : Number(value.toPrecision(digits));
  return rounded && Math.abs(rounded) < LEAST_PLAIN ? rounded.toExponential() : plain(Math.abs(value) < 10 ** digits ? rounded : Math.round(value));
}

/** Pure: the numbers of an axis, `step` apart, each with all its digits: no two are the same. */
function ticks(values, step) {
  const exact = values.map(value => Number((Math.round(value / (step / 10)) * (step / 10)).toPrecision(12)));
  const areSmall = Math.max(...exact.map(Math.abs)) < LEAST_PLAIN;
  return exact.map(value => value && areSmall ? value.toExponential() : plain(value));
}

/** Pure: a day and a time, such as 2026-01-31 18:00, here. */
function dated(at) {
  const is = new Date(at), two = value => String(value).padStart(2, "0");
  return `${is.getFullYear()}-${two(is.getMonth() + 1)}-${two(is.getDate())} ${two(is.getHours())}:${two(is.getMinutes())}`;
}

const isSameDay = (one, other) => new Date(one).toDateString() === new Date(other).toDateString();
const isToday = at => isSameDay(at, Date.now());

/** Pure: hours and minutes of today, or a day with them. */
const briefly = at => isToday(at) ? clock(at).slice(0, 5) : dated(at);

/** A time as its reader's clock shows it, with that of UTC as title. */
const timeOf = (at, text) => make("time", {dateTime: at, title: `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`}, text);

/** Pure: a time of today, or a day and a time. */
function moment(at) {
  const is = new Date(at);
  return isToday(at) ? clock(at) : `${is.toLocaleDateString([], {day: "numeric", month: "short"})} ${clock(at)}`;
}
