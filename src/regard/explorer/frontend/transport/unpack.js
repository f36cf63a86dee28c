// Unpacks responses: the length of the header, the header as JSON, then the arrays, each at a multiple of 8 bytes.

const ARRAY_TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, float16: Uint16Array };

/**
 * @param {ArrayBuffer} buffer
 * @returns {{values: Object, arrays: Object<string, {data: Float32Array|Int32Array|Uint8Array, shape: number[]}>}}
 */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  let offset = alignOffset(4 + length);
  for (const { name, dtype, shape } of header.arrays) {
    const count = shape.reduce((product, n) => product * n, 1);
    const data = new ARRAY_TYPES[dtype](buffer, offset, count);
    arrays[name] = { data: dtype === "float16" ? float16ToFloat32(data) : data, shape };
    offset = alignOffset(offset + data.byteLength);
  }
  return { values: header.values, arrays };
}

/** The bytes of a base64 text as a new buffer. */
export function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let n = 0; n < binary.length; n += 1) bytes[n] = binary.charCodeAt(n);
  return bytes.buffer;
}

/** Decompresses bytes that zlib compressed. */
export function inflate(buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function alignOffset(offset) {
  return Math.ceil(offset / 8) * 8;
}

/** Converts float16 bits (1 sign, 5 exponent, 10 fraction) to float32. */
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
