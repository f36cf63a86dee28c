// Taking what is seen along: the page as one file, the map as a picture.

import { css } from "./colour.js";
import { button, drawn, element, save } from "./element.js";
import { label, number } from "./format.js";
import { layerOf, shownOf } from "./subject.js";

const MOST_CELLS = 10_000; // of a drawing; beyond that, it holds a picture
const MOST_HEADS = 64;
const LONGEST = 4096; // tokens up to which a file takes maps of heads of other layers, which take long to compute

export function exportMenu(context) {
  const list = element("div", { class: "menu-list" });
  const node = element("details", { class: "menu" }, element("summary", {}, "Export"), list);
  const item = (text, title, act) =>
    button(
      text,
      async () => {
        node.open = false;
        try {
          await act();
        } catch (error) {
          context.fail(error);
        }
      },
      { title },
    );
  if (context.source.kind !== "file") {
    list.append(item("This page as a file", "An HTML file that opens without a server", () => saveFile(context)));
  }
  list.append(
    item("The map as PNG", "As it is on the screen", () => savePng(context)),
    item("The map as SVG", "As it is on the screen, to be scaled", () => saveSvg(context)),
  );
  if (context.source.kind !== "widget") {
    const copy = async () => {
      await navigator.clipboard.writeText(location.href);
      context.say("The address was copied.");
    };
    list.append(item("A link to this view", "Copies the address", copy));
  }
  node.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !node.contains(event.relatedTarget)) node.open = false;
  });
  context.root.addEventListener("pointerdown", (event) => {
    if (!node.contains(event.target)) node.open = false;
  });
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") node.open = false;
  });
  return node;
}

/** The heads whose maps a file takes, the open one and its layer first; of all others it has small maps. */
function headsForFile(state) {
  const all = shownOf(state).layers.flatMap((layer) => layer.heads.map((head) => [layer.number, head]));
  const rank = ([layer, head]) => (layer !== state.layer ? 2 : head === state.head ? 0 : 1);
  const some = layerOf(state).keys <= LONGEST ? all : all.filter((each) => rank(each) < 2);
  return some.sort((a, b) => rank(a) - rank(b)).slice(0, MOST_HEADS);
}

async function saveFile(context) {
  const state = context.store.get();
  const heads = headsForFile(state);
  context.status("the file is written", null);
  try {
    const looked = [...context.looked].map((each) => JSON.parse(each));
    const isMine = ({ epoch, shown }) => epoch === state.epoch && shown === state.shown;
    const asked = { shown: state.shown, heads, cells: looked.filter(isMine).map((each) => each.cell) };
    const { arrays } = await context.asking.slowly("export", asked, context.status);
    save(new Blob([arrays.html.data], { type: "text/html" }), "regard.html");
  } finally {
    context.status("");
  }
}

function mapOf(context) {
  const map = context.maps?.at(-1);
  if (!map) throw new Error("There is no map to save: open the view Map first.");
  return map;
}

async function savePng(context) {
  const { canvas } = mapOf(context);
  const copy = element("canvas", { width: canvas.width, height: canvas.height });
  const pen = copy.getContext("2d");
  pen.fillStyle = getComputedStyle(canvas).getPropertyValue("--paper");
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(canvas, 0, 0);
  save(
    await new Promise((done) => {
      copy.toBlob(done, "image/png");
    }),
    "regard.png",
  );
}

async function saveSvg(context) {
  const svg = svgOf(mapOf(context));
  save(new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" }), "regard.svg");
}

/** The part of the map in view as a drawing: a rectangle a weight, with tokens at the sides. */
function svgOf(map) {
  const { view, canvas } = map;
  const style = getComputedStyle(canvas);
  const svg = drawn("svg", {
    viewBox: `0 0 ${canvas.clientWidth} ${canvas.clientHeight}`,
    width: canvas.clientWidth,
    height: canvas.clientHeight,
    "font-family": "sans-serif",
    "font-size": 12,
  });
  svg.append(drawn("rect", { width: "100%", height: "100%", fill: style.getPropertyValue("--paper") }));
  const [rows, columns] = [view.rows, view.columns];
  const isSmall = (rows[1] - rows[0]) * (columns[1] - columns[0]) <= MOST_CELLS && map.level === 0;
  if (isSmall) svg.append(cells(map, rows, columns), names(map, rows, columns, style.getPropertyValue("--ink")));
  else svg.append(drawn("image", { href: canvas.toDataURL(), width: canvas.clientWidth, height: canvas.clientHeight }));
  svg.append(
    drawn("title", {}, `Attention, queries ${rows[0]} to ${rows[1] - 1}, keys ${columns[0]} to ${columns[1] - 1}`),
  );
  return svg;
}

function cells(map, rows, columns) {
  const { view, left, top } = map;
  const look = map.lookOf(0);
  const group = drawn("g", {});
  for (let i = rows[0]; i < rows[1]; i += 1) {
    for (let j = columns[0]; j < columns[1]; j += 1) {
      const found = map.valueAt(i, j);
      if (!found?.value) continue;
      const cell = drawn("rect", {
        x: left + (j - view.left) * view.unit,
        y: top + (i - view.top) * view.unit,
        width: view.unit,
        height: view.unit,
        fill: css(look.colours, look.share(found.value)),
      });
      cell.append(drawn("title", {}, number(found.value)));
      group.append(cell);
    }
  }
  return group;
}

function names(map, rows, columns, ink) {
  const { view, left, top, subject } = map;
  const group = drawn("g", { fill: ink });
  if (view.unit < 11) return group;
  for (let i = rows[0]; i < rows[1]; i += 1)
    group.append(
      drawn(
        "text",
        { x: left - 8, y: top + (i + 0.5 - view.top) * view.unit + 4, "text-anchor": "end" },
        label(subject.rowTokens[i]),
      ),
    );
  for (let j = columns[0]; j < columns[1]; j += 1) {
    const x = left + (j + 0.5 - view.left) * view.unit;
    group.append(
      drawn("text", { x, y: top - 8, transform: `rotate(-53 ${x} ${top - 8})` }, label(subject.columnTokens[j])),
    );
  }
  return group;
}
