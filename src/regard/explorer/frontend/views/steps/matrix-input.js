// A small matrix with editable numbers; a whole matrix can be pasted.

import { button, element, replaceContent } from "../../lib/element.js";
import { parseMatrix, resizeMatrix } from "./parse-matrix.js";

/** @import { Matrix } from "../../lib/types.js" */

const MAX_SIZE = 12; // rows or columns

/**
 * An editable matrix with buttons that add and remove rows and columns.
 * @param {string} name
 * @param {number[][]} values
 * @param {string} color
 * @param {(values: number[][]) => void} onChange
 */
export function matrixInput(name, values, color, onChange) {
  let matrix = values.map((row) => row.slice());
  const table = element("table", { class: `matrix is-editable ${color}-color` });
  /** @param {Matrix} next */
  const replaceMatrix = (next) => {
    matrix = next;
    draw();
    onChange(matrix);
  };
  const draw = () =>
    replaceContent(
      table,
      element(
        "tbody",
        {},
        matrix.map((row, i) =>
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
              input.value = String(x);
              input.addEventListener("input", () => {
                const value = Number(input.value.replace(",", "."));
                const isValid = Number.isFinite(value) && input.value.trim() !== "";
                input.classList.toggle("is-invalid", !isValid);
                input.setAttribute("aria-invalid", String(!isValid));
                input.title = isValid ? "" : "Enter a finite number; the stages show the last valid one";
                if (!isValid) return;
                matrix = matrix.map((line, n) => (n === i ? line.map((old, m) => (m === j ? value : old)) : line));
                onChange(matrix);
              });
              input.addEventListener("paste", (event) => {
                const pasted = parseMatrix(event.clipboardData?.getData("text") ?? "");
                if (!pasted) return;
                event.preventDefault();
                replaceMatrix(pasted);
              });
              return element("td", {}, input);
            }),
          ),
        ),
      ),
    );
  draw();
  /**
   * @param {number} addedRows
   * @param {number} addedColumns
   */
  const resize = (addedRows, addedColumns) => () => {
    const [rows, columns] = [matrix.length + addedRows, matrix[0].length + addedColumns];
    const isAllowed = Math.min(rows, columns) >= 1 && Math.max(rows, columns) <= MAX_SIZE;
    if (isAllowed) replaceMatrix(resizeMatrix(matrix, rows, columns));
  };
  /**
   * @param {string} text
   * @param {string} label
   * @param {number} rows
   * @param {number} columns
   */
  const resizeButton = (text, label, rows, columns) =>
    button(text, resize(rows, columns), {
      class: "quiet-button tiny",
      title: label,
      "aria-label": `${name}: ${label}`,
    });
  return element(
    "figure",
    { class: "matrix-input" },
    element(
      "figcaption",
      { class: `${color}-color` },
      name,
      element(
        "span",
        { class: "resize-buttons" },
        resizeButton("− row", "remove a row", -1, 0),
        resizeButton("+ row", "add a row", 1, 0),
        resizeButton("− col", "remove a column", 0, -1),
        resizeButton("+ col", "add a column", 0, 1),
      ),
    ),
    table,
  );
}
