// The controls of the Overview: which measure is shown, the order of the heads and the filter by kind.

import { button, element, replaceContent, segmentedControl, select } from "../../lib/element.js";
import { kindLabel, measureDescription, measuresIn, measureTitle } from "../../lib/head-measures.js";

/** @import { Context, HeadTable } from "../../lib/types.js" */

/** @type {[string, never[]]} */
const ALL_KINDS = ["", []]; // the filter that keeps every head

/**
 * Shows the controls: the measure, the order, the pooling and the filter by kind.
 * @param {Context} context
 * @param {HTMLElement} node
 * @param {HeadTable | null} table null before the heads are measured
 */
export function drawControls({ store }, node, table) {
  const state = store.get();
  const measures = table ? measuresIn(table.columns) : [state.measure];
  /** @param {[string, Array<[number, number, number]>]} entry */
  const isListed = ([kind, heads]) => heads.length || kind === state.kindFilter;
  const kinds = table ? Object.entries(table.heads_by_kind).filter(isListed) : [];
  replaceContent(
    node,
    element(
      "label",
      { class: "field" },
      "Measure ",
      select(
        "Measure",
        measures.map((name) => /** @type {[string, string]} */ ([name, measureTitle(name)])),
        state.measure,
        (measure) => store.set({ measure }),
      ),
    ),
    segmentedControl(
      "Order",
      [
        ["layer", "By layer"],
        ["largest", "Largest first"],
        ["smallest", "Smallest first"],
      ],
      state.headOrder,
      (headOrder) => store.set({ headOrder }),
    ),
    segmentedControl(
      "Pooling",
      [
        ["mean", "Mean", "A cell of a thumbnail shows the mean of its weights"],
        ["max", "Max", "A cell of a thumbnail shows the largest of its weights"],
      ],
      state.pooling,
      (pooling) => store.set({ pooling }),
    ),
    element("div", { class: "spacer" }),
    kinds.length
      ? element(
          "div",
          { class: "chip-group", role: "group", "aria-label": "Kinds of heads" },
          [ALL_KINDS, ...kinds].map(([kind, heads]) =>
            button(kind ? `${kindLabel(kind)} ${heads.length}` : "all", () => store.set({ kindFilter: kind }), {
              class: "chip",
              "aria-pressed": String(state.kindFilter === kind),
              title: kind ? `${measureTitle(kind)}: ${measureDescription(kind)}` : "All heads",
              "data-kind": kind,
            }),
          ),
        )
      : null,
  );
}
