// Unpacks responses: the length of the header, the header as JSON, then the arrays, each at a multiple of 8 bytes.

/** @import { PackedArray, Payload } from "../lib/types.js" */

/** @type {Record<string, typeof Float32Array | typeof Int32Array | typeof Uint8Array | typeof Uint16Array>} */
const ARRAY_TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, float16: Uint16Array };

/**
 * @param {ArrayBuffer} buffer
 * @returns {Payload<any, any>} any: the types of a response depend on its endpoint
 */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  /** @type {Record<string, PackedArray<ArrayLike<number>>>} */
  const arrays = {};
  let offset = alignOffset(4 + length);
  for (const { name, dtype, shape } of header.arrays) {
    const count = shape.reduce((/** @type {number} */ product, /** @type {number} */ n) => product * n, 1);
    const data = new ARRAY_TYPES[dtype](buffer, offset, count);
    arrays[name] = { data: data instanceof Uint16Array ? float16ToFloat32(data) : data, shape };
    offset = alignOffset(offset + data.byteLength);
  }
  return { values: header.values, arrays };
}

/**
 * The bytes of a base64 text as a new buffer.
 * @param {string} text
 */
export function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let n = 0; n < binary.length; n += 1) bytes[n] = binary.charCodeAt(n);
  return bytes.buffer;
}

/**
 * Decompresses bytes that zlib compressed.
 * @param {ArrayBuffer} buffer
 */
export function inflate(buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** @param {number} offset */
function alignOffset(offset) {
  return Math.ceil(offset / 8) * 8;
}

/**
 * Converts float16 bits (1 sign, 5 exponent, 10 fraction) to float32.
 * @param {Uint16Array} halves
 */
function float16ToFloat32(halves) {
  const floats = new Float32Array(halves.length);
  for (let n = 0; n < halves.length; n += 1) {
    const sign = halves[n] & 0x8000 ? -1 : 1;
    const exponent = (halves[n] >> 10) & 31;
    const fraction = halves[n] & 1023;
    if (exponent === 0) floats[n] = sign * fraction * 2 ** -24;
    else if (exponent === 31) floats[n] = fraction ? NaN : sign * Infinity;
    else floats[n] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return floats;
}
