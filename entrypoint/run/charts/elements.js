// What the page and the report use to make elements and to write times. Text is never HTML.
"use strict";

/** An element of one kind with properties and children; strings among them become text. */
function make(kind, properties, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

const clock = at => new Date(at).toLocaleTimeString([], {hour12: false});
/** Pure: a time of today, or a day and a time. */
function moment(at) {
  const is = new Date(at), isToday = is.toDateString() === new Date().toDateString();
  return isToday ? clock(at) : `${is.toLocaleDateString([], {day: "numeric", month: "short"})} ${clock(at)}`;
}
