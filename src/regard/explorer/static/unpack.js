// Packed answers: the length of a header, the header as JSON, then arrays; everything begins at a multiple of 8 bytes.

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, float16: Uint16Array };

/**
 * @param {ArrayBuffer} buffer
 * @returns {{values: Object, arrays: Object<string, {data: Float32Array|Int32Array|Uint8Array, shape: number[]}>}}
 */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  let at = aligned(4 + length);
  for (const { name, dtype, shape } of header.arrays) {
    const count = shape.reduce((product, n) => product * n, 1);
    const data = new KINDS[dtype](buffer, at, count);
    arrays[name] = { data: dtype === "float16" ? widened(data) : data, shape };
    at = aligned(at + data.byteLength);
  }
  return { values: header.values, arrays };
}

/** The bytes of a text in base64, as a buffer of their own. */
export function fromBase64(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let n = 0; n < letters.length; n += 1) bytes[n] = letters.charCodeAt(n);
  return bytes.buffer;
}

/** Bytes that zlib compressed, as they were. */
export function inflated(buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function aligned(place) {
  return Math.ceil(place / 8) * 8;
}

/** Numbers of 16 bits as ordinary ones: a sign, 5 bits of exponent, 10 of fraction. */
function widened(halves) {
  const found = new Float32Array(halves.length);
  for (let n = 0; n < halves.length; n += 1) {
    const sign = halves[n] & 0x8000 ? -1 : 1;
    const exponent = (halves[n] >> 10) & 31;
    const fraction = halves[n] & 1023;
    if (exponent === 0) found[n] = sign * fraction * 2 ** -24;
    else if (exponent === 31) found[n] = fraction ? NaN : sign * Infinity;
    else found[n] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return found;
}
