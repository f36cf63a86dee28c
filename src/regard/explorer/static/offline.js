// Rows, columns and lines of a head put together from its exact tiles, where nobody can be asked for them.

const TILE = 256;

/** The answer to `row`, `column` or `lines`; null if a tile is missing or the question is another one. */
export async function fromTiles(held, name, params) {
  if (!["row", "column", "lines"].includes(name)) return null;
  const matrices = [];
  for (const head of params.heads) {
    const whole = await matrix(held, params.shown, params.layer, head);
    if (!whole) return null;
    matrices.push(whole);
  }
  if (name === "row")
    return answer(
      "mean",
      matrices.map((each) => meanOfRows(each, params.queries)),
    );
  if (name === "column")
    return answer(
      "sum",
      matrices.map((each) => sumOfColumns(each, params.keys)),
    );
  return lines(matrices, params);
}

async function matrix(held, shown, layer, head) {
  const size = await held("levels", { shown, layer, head });
  if (!size) return null;
  const { queries, keys } = size.values;
  const data = new Float32Array(queries * keys);
  for (let row = 0; row * TILE < queries; row += 1) {
    for (let column = 0; column * TILE < keys; column += 1) {
      const tile = await held("tile", { shown, layer, head, level: 0, row, column });
      if (!tile) return null;
      const [height, width] = tile.arrays.mean.shape;
      for (let i = 0; i < height; i += 1) {
        const part = tile.arrays.mean.data.subarray(i * width, (i + 1) * width);
        data.set(part, (row * TILE + i) * keys + column * TILE);
      }
    }
  }
  return { data, queries, keys };
}

function meanOfRows({ data, keys }, chosen) {
  const found = new Float32Array(keys);
  for (const i of chosen) for (let j = 0; j < keys; j += 1) found[j] += data[i * keys + j] / chosen.length;
  return found;
}

function sumOfColumns({ data, queries, keys }, chosen) {
  const found = new Float32Array(queries);
  for (let i = 0; i < queries; i += 1) for (const j of chosen) found[i] += data[i * keys + j];
  return found;
}

function answer(name, rows) {
  const data = new Float32Array(rows.length * rows[0].length);
  rows.forEach((row, n) => data.set(row, n * row.length));
  return { values: {}, arrays: { [name]: { data, shape: [rows.length, rows[0].length] } } };
}

function lines(matrices, { heads, from, to, mass }) {
  const found = { query: [], key: [], head: [], weight: [] };
  matrices.forEach(({ data, queries, keys }, n) => {
    for (let i = from; i < Math.min(to, queries); i += 1) {
      const row = data.subarray(i * keys, (i + 1) * keys);
      let left = mass * row.reduce((sum, w) => sum + w, 0);
      for (const j of [...row.keys()].sort((a, b) => row[b] - row[a])) {
        if (left <= 0 || row[j] <= 0) break;
        left -= row[j];
        found.query.push(i);
        found.key.push(j);
        found.head.push(heads[n]);
        found.weight.push(row[j]);
      }
    }
  });
  const arrays = Object.fromEntries(
    Object.entries(found).map(([name, list]) => [name, { data: list, shape: [list.length] }]),
  );
  return { values: {}, arrays };
}
