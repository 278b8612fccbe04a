"""Whether a browser has broken a word, as where a column is too narrow."""

from __future__ import annotations

ROWS_OF_WORDS = """
all => all.flatMap(
  one => one.textContent.split(" ").map(word => [one, word])
).map(([one, word]) => {
  const text = one.firstChild, place = text.data.indexOf(word), range = document.createRange();
  range.setStart(text, place);
  range.setEnd(text, place + word.length);
  return range.getClientRects().length;
})
"""
"""Of elements that have nothing but text: in how many rows each word is, 1 if it is whole."""
