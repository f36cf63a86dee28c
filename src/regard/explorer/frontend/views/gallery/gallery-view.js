// The Gallery view: every mechanism of the catalog on the same input, with filters.

import { button, element, replaceContent } from "../../lib/element.js";
import { effectiveTheme } from "../../state/theme.js";
import { drawPicture, emptyPicture, mechanismCard } from "./mechanism-card.js";
import { hasProperties, toggleProperty } from "./properties.js";

/** @import { CatalogEntry, Context, PackedArray, Payload } from "../../lib/types.js" */

/**
 * @typedef {Object} Card
 * @property {CatalogEntry} entry
 * @property {HTMLElement} node
 * @property {HTMLCanvasElement} picture
 * @property {Uint8Array} levels
 *
 * @typedef {Object} Parts
 * @property {HTMLElement} filters
 * @property {HTMLElement} status
 * @property {HTMLElement} families
 * @property {Card[]} cards
 * @property {string[]} properties names of all properties
 */

/** @param {Context} context */
export function galleryView(context) {
  /** @type {Parts} */
  const parts = {
    filters: element("div", {
      class: "chip-group",
      role: "group",
      "aria-label": "Properties of the mechanisms to show",
    }),
    status: element("span", { class: "status-text", role: "status" }),
    families: element("div", { class: "mechanism-families" }),
    cards: [],
    properties: [],
  };
  context.subscribe((_, changed) => {
    if (changed.has("galleryFilter")) filterCards(context, parts);
    if (changed.has("theme") || changed.has("isDarkEnvironment")) drawPictures(context, parts);
  });
  begin(context, parts);
  return element(
    "section",
    { class: "view gallery-view", "aria-label": "Gallery" },
    element("div", { class: "intro" }, element("p", {}, INTRODUCTION), element("p", { class: "hint" }, LEGEND)),
    element("div", { class: "toolbar" }, parts.filters, parts.status),
    parts.families,
  );
}

const INTRODUCTION =
  "Every mechanism of regard on the same 32 tokens. The tokens have four topics; tokens of one topic are similar.";
const LEGEND =
  "Row i is query i, and column j is key j. The color is the square root of the weight: the strongest blue is 1 or more, " +
  "orange is negative, and an empty cell is exactly 0. Formulas are written in one line.";

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function begin(context, parts) {
  try {
    const { values, arrays } =
      /** @type {Payload<{mechanisms: CatalogEntry[], properties: string[]}, {levels: PackedArray<Uint8Array>}>} */ (
        await context.requestCached("gallery", {})
      );
    const [, rows, columns] = arrays.levels.shape;
    parts.properties = values.properties;
    parts.cards = values.mechanisms.map((entry, n) => {
      const picture = emptyPicture(entry.name, [rows, columns]);
      const levels = arrays.levels.data.slice(n * rows * columns, (n + 1) * rows * columns);
      return { entry, picture, levels, node: mechanismCard(context, entry, picture) };
    });
    drawPictures(context, parts);
    filterCards(context, parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function drawPictures({ store }, { cards }) {
  for (const { picture, levels } of cards) drawPicture(picture, levels, effectiveTheme(store.get()));
}

/**
 * Shows the cards with all selected properties, by family.
 * @param {Context} context
 * @param {Parts} parts
 */
function filterCards({ store }, { filters, status, families, cards, properties }) {
  const selected = store.get().galleryFilter.split(",");
  /** @param {string} name */
  const filterButton = (name) => {
    const toggle = () => store.set({ galleryFilter: toggleProperty(properties, selected, name).join(",") });
    return button(name, toggle, { class: "chip", "aria-pressed": String(selected.includes(name)) });
  };
  const showAll = () => store.set({ galleryFilter: "" });
  replaceContent(
    filters,
    properties.map(filterButton),
    store.get().galleryFilter ? button("show all", showAll, { class: "quiet-button" }) : null,
  );
  const known = properties.filter((name) => selected.includes(name));
  const shown = cards.filter(({ entry }) => hasProperties(entry.properties, known));
  status.textContent = `${shown.length} of ${cards.length} mechanisms`;
  const names = [...new Set(shown.map(({ entry }) => entry.family))];
  replaceContent(
    families,
    names.map((family) => [
      element("h2", {}, family),
      element(
        "div",
        { class: "mechanism-cards" },
        shown.filter(({ entry }) => entry.family === family).map(({ node }) => node),
      ),
    ]),
  );
}
