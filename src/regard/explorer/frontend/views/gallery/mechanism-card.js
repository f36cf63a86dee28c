// A card of the gallery: the picture, the idea, formula, cost, paper and code of a mechanism.

import { colorRamp } from "../../lib/color/palettes.js";
import { context2d, element } from "../../lib/element.js";
import { codeBox } from "../../widgets/code-box.js";
import { latexParts } from "./latex-parts.js";
import { levelPixels } from "./level-pixels.js";

/** @import { CatalogEntry, Context, Theme } from "../../lib/types.js" */
/** @import { FormulaPart } from "./latex-parts.js" */

/**
 * @param {Context} context
 * @param {CatalogEntry} entry
 * @param {HTMLCanvasElement} picture
 */
export function mechanismCard(context, entry, picture) {
  const properties = entry.exact ? entry.properties : [...entry.properties, "approximate"];
  return element(
    "article",
    { class: "mechanism-card", "data-name": entry.name },
    element("h3", {}, entry.name),
    element("div", { class: "mechanism-summary" }, picture, element("p", {}, entry.idea)),
    element("p", { class: "formula-text", title: entry.formula }, latexParts(entry.formula).map(formulaNode)),
    element(
      "ul",
      { class: "chip-group", "aria-label": "Properties" },
      properties.map((name) => element("li", { class: "chip" }, name)),
    ),
    element(
      "dl",
      { class: "mechanism-facts" },
      fact("Time", complexity(entry.time_complexity)),
      fact("Memory", complexity(entry.memory_complexity)),
      fact(entry.exact ? "Exact" : "Approximate", entry.exactness),
      fact("Paper", entry.paper),
      fact("Test", entry.reference_test.split("::")[1]),
    ),
    codeBox(context, `Code of ${entry.name}`, entry.example),
  );
}

/**
 * @param {string} name
 * @param {string | Array<string | Element>} value
 */
function fact(name, value) {
  return [element("dt", {}, name), element("dd", {}, value)];
}

/**
 * @param {FormulaPart} part
 * @returns {string | Element}
 */
function formulaNode(part) {
  return typeof part === "string" ? part : element(part.kind, {}, part.parts.map(formulaNode));
}

/**
 * A cost such as "n^1.5 d_a" with its powers raised; "n^(1 + 1/D)" keeps its parentheses.
 * @param {string} text
 */
function complexity(text) {
  return latexParts(text.replace(/\^(\d+\.\d+|\([^)]*\))/g, "^{$1}")).map(formulaNode);
}

/**
 * An empty picture of a mechanism.
 * @param {string} name
 * @param {[rows: number, columns: number]} shape
 */
export function emptyPicture(name, [rows, columns]) {
  return element("canvas", {
    class: "weight-picture",
    width: columns,
    height: rows,
    role: "img",
    "aria-label": `Weights of ${name}: ${rows} queries and ${columns} keys`,
  });
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Uint8Array} levels
 * @param {Theme} theme
 */
export function drawPicture(canvas, levels, theme) {
  const pixels = levelPixels(levels, colorRamp("ink", theme), colorRamp("difference", theme));
  context2d(canvas).putImageData(new ImageData(pixels, canvas.width, canvas.height), 0, 0);
}
