// The export menu: the page as an HTML file, the map as PNG or SVG, and a link to the view.

import { LABEL_ANGLE_DEGREES } from "../charts/map/map-axes.js";
import { rampColor } from "../lib/color/palettes.js";
import { button, context2d, downloadBlob, element, svgElement } from "../lib/element.js";
import { formatNumber, tokenLabel } from "../lib/format.js";
import { selectHead, selectSession } from "../state/selectors.js";
import { MAX_LINK_TEXT_CHARACTERS } from "../state/url-state.js";
import { closeOnLeave } from "./menu.js";

/**
 * @import { HeadMap } from "../charts/map/head-map.js"
 * @import { Layer, PageContext, Range, State } from "../lib/types.js"
 */

const MAX_SVG_CELLS = 10_000; // an SVG of more cells embeds a bitmap
const MAX_EXPORTED_HEADS = 64;
const MAX_TOKENS_ALL_LAYERS = 4096; // longer texts export only the maps of the open layer, because a map takes long

/**
 * The export menu.
 * @param {PageContext} context
 */
export function exportMenu(context) {
  const list = element("div", { class: "menu-list" });
  const node = element("details", { class: "menu" }, element("summary", {}, "Export"), list);
  /**
   * @param {string} text
   * @param {string} title
   * @param {() => void | Promise<void>} action
   */
  const item = (text, title, action) =>
    button(
      text,
      async () => {
        node.open = false;
        try {
          await action();
        } catch (error) {
          context.showError(error);
        }
      },
      { title },
    );
  if (context.source.kind !== "file") {
    list.append(item("Page as HTML", "One HTML file that opens without a server", () => downloadPage(context)));
  }
  list.append(
    item("Map as PNG", "The visible part of the map as a bitmap", () => downloadPng(context)),
    item("Map as SVG", "The visible part of the map as vector graphics", () => downloadSvg(context)),
  );
  if (context.source.kind !== "widget") {
    const copy = async () => {
      await navigator.clipboard.writeText(location.href);
      const { length } = selectSession(context.store.get())?.text ?? "";
      const isTooLong = length > MAX_LINK_TEXT_CHARACTERS;
      context.announce(isTooLong ? "Link copied without the text, which is too long." : "Link copied.");
    };
    const limit = `Copies a link to this view; texts of more than ${MAX_LINK_TEXT_CHARACTERS} characters are left out`;
    list.append(item("Copy link", limit, copy));
  }
  closeOnLeave(node, context.root);
  return node;
}

/**
 * The heads whose maps the file contains: the open head first, then its layer. Other heads have thumbnails only.
 * @param {State} state
 */
function headsForFile(state) {
  const { session, layer: openLayer } = selectHead(state);
  /** @param {Layer} layer */
  const headsOf = (layer) => layer.head_indices.map((head) => [layer.index, head]);
  const all = session.layers.flatMap(headsOf);
  /** @param {number[]} indices */
  const rank = ([layer, head]) => (layer !== state.layer ? 2 : head === state.head ? 0 : 1);
  const isShort = openLayer.num_keys <= MAX_TOKENS_ALL_LAYERS;
  const heads = isShort ? all : all.filter((head) => rank(head) < 2);
  return heads.sort((a, b) => rank(a) - rank(b)).slice(0, MAX_EXPORTED_HEADS);
}

/** @param {PageContext} context */
async function downloadPage(context) {
  const state = context.store.get();
  const heads = headsForFile(state);
  context.showProgress("writing the file", null);
  try {
    const cells = [...context.openedCells]
      .map((json) => JSON.parse(json))
      .filter(({ stateVersion, session }) => stateVersion === state.stateVersion && session === state.session)
      .map(({ cell }) => cell);
    const params = { session: state.session, heads, cells };
    const { arrays } = await context.requestCache.requestWithProgress("export", params, context.showProgress);
    downloadBlob(new Blob([arrays.html.data], { type: "text/html" }), "regard.html");
  } finally {
    context.showProgress("");
  }
}

/** @param {PageContext} context */
function currentMap(context) {
  const map = context.visibleMaps?.at(-1);
  if (!map) throw new Error("There is no map to export. Open the Map view first.");
  return map;
}

/** @param {PageContext} context */
async function downloadPng(context) {
  const { canvas } = currentMap(context);
  const copy = element("canvas", { width: canvas.width, height: canvas.height });
  const canvasContext = context2d(copy);
  canvasContext.fillStyle = getComputedStyle(canvas).getPropertyValue("--paper");
  canvasContext.fillRect(0, 0, copy.width, copy.height);
  canvasContext.drawImage(canvas, 0, 0);
  copy.toBlob((blob) => {
    if (blob) downloadBlob(blob, "regard.png");
  }, "image/png");
}

/** @param {PageContext} context */
async function downloadSvg(context) {
  const svg = mapToSvg(currentMap(context));
  downloadBlob(new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" }), "regard.svg");
}

/**
 * The visible part of the map as SVG: one rectangle per weight, with token labels.
 * @param {HeadMap} map
 */
function mapToSvg(map) {
  const { view, canvas } = map;
  const style = getComputedStyle(canvas);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${canvas.clientWidth} ${canvas.clientHeight}`,
    width: canvas.clientWidth,
    height: canvas.clientHeight,
    "font-family": "sans-serif",
    "font-size": 12,
  });
  svg.append(svgElement("rect", { width: "100%", height: "100%", fill: style.getPropertyValue("--paper") }));
  const [rows, columns] = [view.rows, view.columns];
  const isSmall = (rows[1] - rows[0]) * (columns[1] - columns[0]) <= MAX_SVG_CELLS && map.level === 0;
  if (isSmall)
    svg.append(cellsSvg(map, rows, columns), tokenLabelsSvg(map, rows, columns, style.getPropertyValue("--ink")));
  else
    svg.append(
      svgElement("image", { href: canvas.toDataURL(), width: canvas.clientWidth, height: canvas.clientHeight }),
    );
  /** @param {Range} range */
  const range = ([first, end]) => `${first} to ${end - 1}`;
  svg.append(svgElement("title", {}, `Attention weights, queries ${range(rows)}, keys ${range(columns)}`));
  return svg;
}

/**
 * @param {HeadMap} map
 * @param {Range} rows
 * @param {Range} columns
 */
function cellsSvg(map, rows, columns) {
  const { view, left, top } = map;
  const { ramp, toFraction } = map.levelColors(0);
  const group = svgElement("g", {});
  for (let i = rows[0]; i < rows[1]; i += 1) {
    for (let j = columns[0]; j < columns[1]; j += 1) {
      const weight = map.valueAt(i, j);
      if (!weight?.value) continue;
      const cell = svgElement("rect", {
        x: left + (j - view.left) * view.pixelsPerToken,
        y: top + (i - view.top) * view.pixelsPerToken,
        width: view.pixelsPerToken,
        height: view.pixelsPerToken,
        fill: rampColor(ramp, toFraction(weight.value)),
      });
      cell.append(svgElement("title", {}, formatNumber(weight.value)));
      group.append(cell);
    }
  }
  return group;
}

/**
 * @param {HeadMap} map
 * @param {Range} rows
 * @param {Range} columns
 * @param {string} ink
 */
function tokenLabelsSvg(map, rows, columns, ink) {
  const { view, left, top, mapData } = map;
  const group = svgElement("g", { fill: ink });
  if (view.pixelsPerToken < 11) return group;
  for (let i = rows[0]; i < rows[1]; i += 1)
    group.append(
      svgElement(
        "text",
        { x: left - 8, y: top + (i + 0.5 - view.top) * view.pixelsPerToken + 4, "text-anchor": "end" },
        tokenLabel(mapData.rowTokens[i]),
      ),
    );
  for (let j = columns[0]; j < columns[1]; j += 1) {
    const x = left + (j + 0.5 - view.left) * view.pixelsPerToken;
    const transform = `rotate(${LABEL_ANGLE_DEGREES} ${x} ${top - 8})`;
    group.append(svgElement("text", { x, y: top - 8, transform }, tokenLabel(mapData.columnTokens[j])));
  }
  return group;
}
