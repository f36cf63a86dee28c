// Starts the widgets of the page "Attention, step by step".

import { element, replaceContent } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { maskWidget } from "./mask-widget.js";
import { modelWidget } from "./model-widget.js";
import { paintWidget } from "./paint-widget.js";
import { scaleWidget } from "./scale-widget.js";
import { headsWidget, sentenceWidget } from "./sentence-widget.js";
import { stepsWidget } from "./steps-widget.js";

/** @import { GuideData } from "./types.js" */

/** @type {Record<string, (data: GuideData) => Promise<HTMLElement>>} */
const WIDGETS = {
  scale: scaleWidget,
  steps: stepsWidget,
  paint: paintWidget,
  causal: (data) =>
    maskWidget(
      data,
      [
        ["none", "No mask"],
        ["causal", "Causal mask"],
      ],
      "causal",
    ),
  padding: (data) =>
    maskWidget(
      data,
      [
        ["none", "No mask"],
        ["padding", "Padding"],
        ["causal & padding", "Causal and padding"],
      ],
      "padding",
    ),
  sentence: sentenceWidget,
  heads: headsWidget,
  model: modelWidget,
};

/**
 * Replaces the static numbers of each widget by the widget.
 * @param {GuideData} data
 */
export async function startGuide(data) {
  followSiteTheme();
  const sections = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".guide-widget"));
  await Promise.all([...sections].map((section) => startWidget(section, data)));
}

/**
 * @param {HTMLElement} section
 * @param {GuideData} data
 */
async function startWidget(section, data) {
  const body = section.querySelector(".widget-body") ?? section.appendChild(element("div"));
  replaceContent(body, await WIDGETS[section.dataset.widget ?? ""](data));
  section.dataset.ready = "";
}

/** Gives the widgets and the pictures the theme of the site, now and after each change. */
function followSiteTheme() {
  const update = () => {
    const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
    for (const node of /** @type {NodeListOf<HTMLElement>} */ (
      document.querySelectorAll(".guide-widget, .guide-picture")
    ))
      node.dataset.theme = theme;
  };
  new MutationObserver(update).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  update();
}
