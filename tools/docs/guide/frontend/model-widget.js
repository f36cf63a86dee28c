// The whole model on the sentence: the next tokens after each word, and the weights of all heads.

import {
  button,
  element,
  replaceContent,
  segmentedControl,
} from "../../../../src/regard/explorer/frontend/lib/element.js";
import { formatFixed, quoteToken } from "../../../../src/regard/explorer/frontend/lib/format.js";
import { matrixTable } from "../../../../src/regard/explorer/frontend/widgets/number-tables.js";
import { barList } from "./bars.js";
import { headMap } from "./head-map.js";

/** @import { GuideData, ModelData } from "./types.js" */

const INITIAL_WORD = 3; // "on", as in the Python block
const NUM_DECIMALS = 2;

/** @param {GuideData} data */
export async function modelWidget({ sentence, model }) {
  const { tokens } = sentence;
  return element(
    "div",
    { class: "guide-columns is-even" },
    predictionFigure(tokens, model),
    headFigure(tokens, model, sentence.layer, sentence.heads[0].head),
  );
}

/**
 * @param {string[]} tokens
 * @param {ModelData} model
 */
function predictionFigure(tokens, { predictions }) {
  const bars = element("div");
  const caption = element("figcaption", { role: "status" });
  /** @param {string} name */
  const select = (name) => {
    const position = Number(name);
    replaceContent(caption, `Next token after “${tokens.slice(0, position + 1).join(" ")}”`);
    const items = predictions[position].map(([token, value]) => ({
      label: quoteToken(token),
      value,
      fraction: value,
      text: formatFixed(value, 3),
      color: "value",
    }));
    replaceContent(bars, barList("Probabilities of the next token", items));
  };
  /** @type {Array<[string, string]>} */
  const choices = tokens.map((token, n) => [String(n), token]);
  select(String(INITIAL_WORD));
  return element("figure", {}, segmentedControl("Word", choices, String(INITIAL_WORD), select), caption, bars);
}

/**
 * @param {string[]} tokens
 * @param {ModelData} model
 * @param {number} initialLayer
 * @param {number} initialHead
 */
function headFigure(tokens, { weights }, initialLayer, initialHead) {
  const table = element("div", { class: "scroll-x" });
  const caption = element("figcaption", { role: "status" });
  const buttons = weights.map((heads, layer) =>
    heads.map((matrix, head) => {
      const node = button("", () => select(layer, head), {
        class: "head-button",
        "aria-label": `Layer ${layer}, head ${head}`,
      });
      node.append(headMap(matrix));
      return node;
    }),
  );
  /**
   * @param {number} layer
   * @param {number} head
   */
  const select = (layer, head) => {
    buttons.flat().forEach((node) => {
      node.setAttribute("aria-pressed", String(node === buttons[layer][head]));
    });
    replaceContent(caption, `Layer ${layer}, head ${head}: rows are queries, columns are keys`);
    const options = { rows: tokens, columns: tokens, digits: NUM_DECIMALS };
    replaceContent(
      table,
      matrixTable(
        weights[layer][head].map((row) => row.map(rounded)),
        options,
      ),
    );
  };
  select(initialLayer, initialHead);
  const rows = buttons.map((heads) => element("div", { class: "head-buttons" }, heads));
  return element("figure", {}, element("div", { role: "group", "aria-label": "Heads" }, rows), caption, table);
}

/**
 * A number without the digits that are not shown, so that small weights are 0.
 * @param {number} x
 */
function rounded(x) {
  return Number(x.toFixed(NUM_DECIMALS));
}
