// Parses a matrix that the user pasted.

/**
 * Parses a matrix: line breaks or semicolons separate rows, spaces or commas separate numbers. Null if invalid.
 * @param {string} text
 */
export function parseMatrix(text) {
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

/**
 * A matrix of another size: added numbers are 0.
 * @param {number[][]} matrix
 * @param {number} rows
 * @param {number} columns
 */
export function resizeMatrix(matrix, rows, columns) {
  return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_unused, j) => matrix[i]?.[j] ?? 0));
}
