// The small map of a head as its only level, where the file holds no larger one.

const SIZE = 64; // cells of a small map in the file

/** The answer to "levels" or "tile" from a small map; null for other questions, and with hidden keys. */
export async function fromThumbnails(held, name, params) {
  if ((name !== "levels" && name !== "tile") || params.hide) return null;
  const { shown, layer, head } = params;
  const small = await held("thumbnails", { shown, layer, size: SIZE });
  const world = await held("state", {});
  const about = world?.values.shown.find((each) => each.id === shown)?.layers.find((each) => each.number === layer);
  const place = (small?.values.heads ?? []).indexOf(head);
  if (!about || place < 0) return null;
  const level = levelOf(about);
  if (name === "levels") return { values: levels(about, level, small.values.rows), arrays: {} };
  return params.level === level ? tile(small.arrays, place) : null;
}

/** The level at which a map has at most SIZE cells a side. */
function levelOf({ queries, keys }) {
  return Math.max(0, Math.ceil(Math.log2(Math.ceil(Math.max(queries, keys) / SIZE))));
}

function levels({ queries, keys }, level, rows) {
  return { levels: level + 1, finest: level, queries, keys, sink: null, sampled: rows };
}

function tile(arrays, place) {
  const part = ({ data, shape: [, rows, columns] }) => ({
    data: data.subarray(place * rows * columns, (place + 1) * rows * columns),
    shape: [rows, columns],
  });
  return { values: {}, arrays: { mean: part(arrays.mean), max: part(arrays.max) } };
}
