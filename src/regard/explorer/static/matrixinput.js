// A small matrix that can be typed into, or pasted.

import { button, element, refill } from "./element.js";

/**
 * @param {string} name
 * @param {number[][]} values
 * @param {string} colour
 * @param {(values: number[][]) => void} change
 */
export function matrixInput(name, values, colour, change) {
  let now = values.map((row) => row.slice());
  const table = element("table", { class: `matrix input of-${colour}` });
  const put = (next) => {
    now = next;
    draw();
    change(now);
  };
  const draw = () =>
    refill(
      table,
      element(
        "tbody",
        {},
        now.map((row, i) =>
          element(
            "tr",
            {},
            row.map((x, j) => {
              const input = element("input", {
                type: "text",
                inputmode: "decimal",
                "aria-label": `${name}, row ${i + 1}, column ${j + 1}`,
                value: x,
              });
              input.value = x;
              input.addEventListener("input", () => {
                const typed = Number(input.value.replace(",", "."));
                input.classList.toggle("bad", !Number.isFinite(typed) || input.value.trim() === "");
                if (!Number.isFinite(typed) || input.value.trim() === "") return;
                now = now.map((each, n) => (n === i ? each.map((old, m) => (m === j ? typed : old)) : each));
                change(now);
              });
              input.addEventListener("paste", (event) => {
                const pasted = parsed(event.clipboardData.getData("text"));
                if (!pasted) return;
                event.preventDefault();
                put(pasted);
              });
              return element("td", {}, input);
            }),
          ),
        ),
      ),
    );
  draw();
  const sized = (rows, columns) =>
    Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_unused, j) => now[i]?.[j] ?? 0));
  const resize = (rows, columns) => () => {
    const [high, wide] = [now.length + rows, now[0].length + columns];
    if (high >= 1 && wide >= 1 && high <= 12 && wide <= 12) put(sized(high, wide));
  };
  const small = (text, words, rows, columns) =>
    button(text, resize(rows, columns), { class: "quiet tiny", title: words, "aria-label": `${name}: ${words}` });
  return element(
    "figure",
    { class: "matrix-input" },
    element(
      "figcaption",
      { class: `of-${colour}` },
      name,
      element(
        "span",
        { class: "sizes" },
        small("− row", "one row less", -1, 0),
        small("+ row", "one row more", 1, 0),
        small("− col", "one column less", 0, -1),
        small("+ col", "one column more", 0, 1),
      ),
    ),
    table,
  );
}

/** Rows of numbers from text: lines or semicolons between rows, spaces, tabs or commas between numbers. */
function parsed(text) {
  const rows = text
    .trim()
    .replace(/[[\]()]/g, " ")
    .split(/[;\n]+/)
    .map((row) =>
      row
        .trim()
        .split(/[\s,]+/)
        .filter(Boolean)
        .map(Number),
    )
    .filter((row) => row.length);
  const isMatrix =
    rows.length * (rows[0]?.length ?? 0) > 1 &&
    rows.every((row) => row.length === rows[0].length && row.every(Number.isFinite));
  return isMatrix ? rows : null;
}
