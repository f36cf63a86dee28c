// A tile of numbers as a small picture, a pixel a cell. A weight of exactly 0 stays clear.

/**
 * @param {import("./tiles.js").Tile} tile
 * @param {"mean"|"max"} pool
 * @param {{colours: Uint8ClampedArray, share: (w: number) => number, signed: boolean, name: string}} look
 */
export function painted(tile, pool, look) {
  if (tile.picture?.name === look.name) return tile.picture.canvas;
  const values = tile[pool];
  const image = new ImageData(tile.columns, tile.rows);
  const pixels = image.data;
  for (let n = 0; n < values.length; n += 1) {
    if (values[n] === 0 && !look.signed) continue;
    const at = 3 * Math.round(255 * Math.min(1, Math.max(0, look.share(values[n]))));
    pixels[4 * n] = look.colours[at];
    pixels[4 * n + 1] = look.colours[at + 1];
    pixels[4 * n + 2] = look.colours[at + 2];
    pixels[4 * n + 3] = 255;
  }
  const canvas = tile.picture?.canvas ?? document.createElement("canvas");
  canvas.width = tile.columns;
  canvas.height = tile.rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
  tile.picture = { name: look.name, canvas };
  return canvas;
}
