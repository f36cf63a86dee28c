// What the colours of a map mean.

import { css } from "./colour.js";
import { element, refill, select } from "./element.js";
import { number } from "./format.js";

const STEPS = 24;

/** Says that a file holds nothing finer, and from how many rows a long text's cells are made. */
function onlyInFile({ subject }) {
  const rows = subject.sampled ? `, from ${subject.sampled} of its rows` : "";
  return subject.finest ? `${rows}; this file holds nothing finer` : rows;
}

export function legendOf(node, map, scale, { store }) {
  const look = map.lookOf(map.level);
  if (node.dataset.name === look.name) return;
  node.dataset.name = look.name;
  const bar = element("span", { class: "ramp", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: STEPS }, (_, n) => css(look.colours, n / (STEPS - 1))).join(", ")})`;
  const ends = {
    linear: ["0", number(look.top, 3)],
    log: [number(look.top / 1e4), number(look.top, 3)],
    rank: ["lowest in view", "highest"],
  }[scale];
  const level = map.level
    ? `${map.looks.choice.pool} of ${2 ** map.level} × ${2 ** map.level} weights a cell${onlyInFile(map)}`
    : "exact weights";
  const palettes = select(
    "Palette",
    [
      ["ink", "Ink"],
      ["meadow", "Meadow"],
    ],
    store.get().palette,
    (palette) => store.set({ palette }),
    { class: "quiet" },
  );
  refill(
    node,
    element("span", {}, ends[0]),
    bar,
    element("span", {}, ends[1]),
    element("span", { class: "level" }, level),
    palettes,
  );
}
