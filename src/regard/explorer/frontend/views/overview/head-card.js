// The card of a head in the overview: thumbnail, layer and head index, a measure and its kinds.

import { sqrtScale } from "../../lib/color/color-scale.js";
import { rampColor, rampOffset } from "../../lib/color/palettes.js";
import { context2d, element, replaceContent } from "../../lib/element.js";
import { formatMeasure, formatNumber } from "../../lib/format.js";
import { headKinds, kindLabel, kindTooltip, measureTitle } from "../../lib/head-measures.js";
import { kindChip } from "../../widgets/head-toolbar.js";

/** @import { HeadTable, Layer, PooledArrays, Pooling, Ramp, State, Store } from "../../lib/types.js" */

/**
 * @typedef {{arrays: PooledArrays, n: number}} Thumbnail the thumbnails of a layer, and the index of the head's
 * @typedef {Object} HeadCard
 * @property {HTMLElement} node
 * @property {HTMLCanvasElement} canvas
 * @property {HTMLElement} value
 * @property {HTMLElement} kinds
 * @property {Layer} layer
 * @property {number} head
 * @property {Thumbnail | null} thumbnail
 */

/**
 * A card that opens the map of a head.
 * @param {Store<State>} store
 * @param {Layer} layer
 * @param {number} head
 * @returns {HeadCard}
 */
export function headCard(store, layer, head) {
  const canvas = element("canvas", { width: 1, height: 1, "aria-hidden": "true" });
  const value = element("span", { class: "value" });
  const kinds = element("span", { class: "head-kinds" });
  const open = () => store.set({ layer: layer.index, head, view: "map", lineHeads: null, hoveredCell: null });
  const node = element(
    "button",
    {
      type: "button",
      class: "head-card",
      "data-layer": layer.index,
      "data-head": head,
      title: layer.path,
      onclick: open,
    },
    element("span", { class: "head-thumbnail" }, canvas),
    element("span", { class: "caption" }, element("span", { class: "head-name" }, `${layer.index}.${head}`), value),
    kinds,
  );
  node.setAttribute("aria-label", `Layer ${layer.index}, head ${head}`);
  return { node, canvas, value, kinds, layer, head, thumbnail: null };
}

/**
 * Paints a thumbnail on the color scale that all heads share.
 * @param {HTMLCanvasElement} canvas
 * @param {Thumbnail} thumbnail
 * @param {Pooling} pooling
 * @param {Ramp} ramp
 */
export function paintThumbnail(canvas, { arrays, n }, pooling, ramp) {
  const [, rows, columns] = arrays[pooling].shape;
  const values = arrays[pooling].data.subarray(n * rows * columns, (n + 1) * rows * columns);
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  values.forEach((w, index) => {
    if (w === 0) return;
    const offset = rampOffset(sqrtScale(w));
    image.data.set([ramp[offset], ramp[offset + 1], ramp[offset + 2], 255], 4 * index);
  });
  context2d(canvas).putImageData(image, 0, 0);
}

/**
 * Shows the value of a measure and the kinds of the head.
 * @param {HeadCard} card
 * @param {number | null} value
 * @param {number} fraction
 * @param {Ramp} ramp
 * @param {HeadTable | null} table
 * @param {string} measure
 */
export function labelHeadCard(card, value, fraction, ramp, table, measure) {
  card.value.textContent = value === null ? "" : formatMeasure(value);
  card.value.style.setProperty(
    "--swatch-color",
    value === null ? "transparent" : rampColor(ramp, 0.08 + 0.92 * fraction),
  );
  const kinds = table ? headKinds(table, card.layer.index, card.head) : [];
  const tooltip = kinds.map(([kind, score]) => kindTooltip(kind, score)).join("\n");
  const numMore = kinds.length > 1 ? `+${kinds.length - 1}` : null;
  replaceContent(card.kinds, kinds.length ? kindChip(kinds[0][0], tooltip) : null, numMore);
  const label = [
    `Layer ${card.layer.index}, head ${card.head}`,
    ...kinds.map(([kind]) => kindLabel(kind)),
    ...(value === null ? [] : [`${measureTitle(measure)} ${formatNumber(value, 2)}`]),
  ];
  card.node.setAttribute("aria-label", label.join(", "));
}
