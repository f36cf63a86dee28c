// Rows, columns and lines of a head put together from its exact tiles, where nobody can be asked for them.

const TILE = 256;
const MADE = { row, column, lines, tile };

/** The answer to one of these questions; null if a tile is missing or the question is another one. */
export async function fromTiles(held, name, params) {
  if (!MADE[name] || (name === "tile" && !(params.hide && params.level === 0))) return null;
  const matrices = [];
  for (const head of params.heads ?? [params.head]) {
    const whole = await matrix(held, params, head);
    if (!whole) return null;
    matrices.push(params.hide ? without(whole, params.hide) : whole);
  }
  return MADE[name](matrices, params);
}

async function matrix(held, { shown, layer }, head) {
  const size = await held("levels", { shown, layer, head });
  if (!size) return null;
  const { queries, keys } = size.values;
  const data = new Float32Array(queries * keys);
  for (let down = 0; down * TILE < queries; down += 1) {
    for (let right = 0; right * TILE < keys; right += 1) {
      const found = await held("tile", { shown, layer, head, level: 0, row: down, column: right });
      if (!found) return null;
      const [height, width] = found.arrays.mean.shape;
      for (let i = 0; i < height; i += 1) {
        const part = found.arrays.mean.data.subarray(i * width, (i + 1) * width);
        data.set(part, (down * TILE + i) * keys + right * TILE);
      }
    }
  }
  return { data, queries, keys };
}

/** The same with some keys hidden: what is left of each row is divided by its sum. */
function without({ data, queries, keys }, hidden) {
  const left = data.slice();
  for (let i = 0; i < queries; i += 1) {
    const part = left.subarray(i * keys, (i + 1) * keys);
    for (const j of hidden) part[j] = 0;
    const sum = part.reduce((all, w) => all + w, 0);
    if (sum > 0) part.forEach((w, j) => (part[j] = w / sum));
  }
  return { data: left, queries, keys };
}

function row(matrices, { queries }) {
  return answer(
    "mean",
    matrices.map((each) => meanOfRows(each, queries)),
  );
}

function column(matrices, { keys }) {
  return answer(
    "sum",
    matrices.map((each) => sumOfColumns(each, keys)),
  );
}

/** A tile of single weights. */
function tile([{ data, queries, keys }], { row: down, column: right }) {
  const [top, left] = [down * TILE, right * TILE];
  const [height, width] = [Math.min(TILE, queries - top), Math.min(TILE, keys - left)];
  const rows = Array.from({ length: height }, (_, i) =>
    data.subarray((top + i) * keys + left, (top + i) * keys + left + width),
  );
  return answer("mean", rows);
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
  rows.forEach((each, n) => data.set(each, n * each.length));
  return { values: {}, arrays: { [name]: { data, shape: [rows.length, rows[0].length] } } };
}

function lines(matrices, { heads, from, to, mass }) {
  const found = { query: [], key: [], head: [], weight: [] };
  matrices.forEach(({ data, queries, keys }, n) => {
    for (let i = from; i < Math.min(to, queries); i += 1) {
      const weights = data.subarray(i * keys, (i + 1) * keys);
      let left = mass * weights.reduce((sum, w) => sum + w, 0);
      for (const j of [...weights.keys()].sort((a, b) => weights[b] - weights[a])) {
        if (left <= 0 || weights[j] <= 0) break;
        left -= weights[j];
        found.query.push(i);
        found.key.push(j);
        found.head.push(heads[n]);
        found.weight.push(weights[j]);
      }
    }
  });
  const arrays = Object.fromEntries(
    Object.entries(found).map(([name, list]) => [name, { data: list, shape: [list.length] }]),
  );
  return { values: {}, arrays };
}
