// The color legend of a map.

import { LOG_SCALE_DECADES } from "../../lib/color/color-scale.js";
import { rampGradient } from "../../lib/color/palettes.js";
import { element, replaceContent, select } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";

/**
 * @import { Context, MapData, ScaleName } from "../../lib/types.js"
 * @import { HeadMap } from "./head-map.js"
 */

/**
 * A note on sampled rows of a long text, and on the finest level of an exported file.
 * @param {MapData} mapData
 */
function offlineLevelNote({ sampledRows, finestLevel }) {
  const sampling = sampledRows ? `, from ${sampledRows} sampled rows` : "";
  return finestLevel ? `${sampling}; this file contains no finer level` : sampling;
}

/**
 * Shows the legend: the color ramp, the values of its ends, the level and the palette.
 * @param {HTMLElement} node
 * @param {HeadMap} map
 * @param {ScaleName} scale
 * @param {Context} context
 */
export function drawMapLegend(node, map, scale, { store }) {
  const mapping = map.levelColors(map.level);
  if (node.dataset.name === mapping.name) return;
  node.dataset.name = mapping.name;
  const bar = element("span", { class: "color-ramp", "aria-hidden": "true" });
  bar.style.background = rampGradient(mapping.ramp);
  const ends = {
    linear: ["0", formatNumber(mapping.maximum, 3)],
    log: [formatNumber(mapping.maximum / 10 ** LOG_SCALE_DECADES), formatNumber(mapping.maximum, 3)],
    rank: ["lowest visible weight", "highest"],
  }[scale];
  const size = 2 ** map.level;
  const level = map.level
    ? `${map.colorMapping.options.pooling} of ${size} × ${size} weights per cell${offlineLevelNote(map.mapData)}`
    : "exact weights";
  const palettes = select(
    "Palette",
    [
      ["ink", "Ink"],
      ["purple-green", "Purple to green"],
    ],
    store.get().palette,
    (palette) => store.set({ palette: palette === "ink" ? "ink" : "purple-green" }),
    { class: "quiet-button" },
  );
  replaceContent(
    node,
    element("span", {}, ends[0]),
    bar,
    element("span", {}, ends[1]),
    element("span", { class: "level-note" }, level),
    palettes,
  );
}
