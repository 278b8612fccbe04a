"""Whether a browser has broken a word, as where a column is too narrow."""

from __future__ import annotations

ROWS_OF_WORDS = """
all => all.flatMap(one => {
  const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) for (const word of texts.currentNode.data.split(" ").filter(Boolean))
    found.push([texts.currentNode, word]);
  return found;
}).map(([text, word]) => {
  const place = text.data.indexOf(word), range = document.createRange();
  range.setStart(text, place);
  range.setEnd(text, place + word.length);
  return range.getClientRects().length;
})
"""
"""In how many rows each word of elements is, 1 if it is whole. A word ends where it may break."""
