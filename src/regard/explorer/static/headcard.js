// One head of the overview: a small map, its place, a measure and what it does.

import { css } from "./colour.js";
import { element, refill } from "./element.js";
import { number } from "./format.js";
import { chip, kindsOf } from "./headbar.js";
import { measureTitle } from "./measures.js";
import { rootShare } from "./scale.js";

export function card(store, layer, head) {
  const canvas = element("canvas", { width: 1, height: 1, "aria-hidden": "true" });
  const value = element("span", { class: "value" });
  const kinds = element("span", { class: "kinds" });
  const open = () => store.set({ layer: layer.number, head, view: "map", heads: null, hover: null });
  const node = element(
    "button",
    { type: "button", class: "card", "data-layer": layer.number, "data-head": head, title: layer.path, onclick: open },
    element("span", { class: "picture" }, canvas),
    element("span", { class: "caption" }, element("span", { class: "where" }, `${layer.number}.${head}`), value),
    kinds,
  );
  node.setAttribute("aria-label", `Layer ${layer.number}, head ${head}`);
  return { node, canvas, value, kinds, layer, head, picture: null };
}

/** A small map, on the scale that all heads have in common. */
export function paintCard(canvas, { arrays, n }, pool, colours) {
  const [, rows, columns] = arrays[pool].shape;
  const values = arrays[pool].data.subarray(n * rows * columns, (n + 1) * rows * columns);
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  values.forEach((w, at) => {
    if (w === 0) return;
    const from = 3 * Math.round(255 * rootShare(w));
    image.data.set([colours[from], colours[from + 1], colours[from + 2], 255], 4 * at);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function labelCard(each, value, share, colours, table, measure) {
  each.value.textContent = value === null ? "" : short(value);
  each.value.style.setProperty("--share", value === null ? "transparent" : css(colours, 0.08 + 0.92 * share));
  const kinds = table ? kindsOf(table, each.layer.number, each.head) : [];
  const all = kinds.map(([kind, score]) => `${kind}, ${Math.round(100 * score)} %: ${table.kinds[kind]}`).join("\n");
  refill(each.kinds, kinds.length ? chip(kinds[0][0], all) : null, kinds.length > 1 ? `+${kinds.length - 1}` : null);
  const said = kinds.map(([kind]) => kind).join(", ");
  each.node.setAttribute(
    "aria-label",
    `Layer ${each.layer.number}, head ${each.head}${said ? `, ${said}` : ""}${value === null ? "" : `, ${measureTitle(measure)} ${number(value, 2)}`}`,
  );
}

function short(value) {
  return Math.abs(value) < 100 ? value.toFixed(2).replace("-", "−") : number(value, 0);
}
