// Measured times of mechanisms on the server's machine, for the model's head dimension.

import { formatCount } from "../../lib/format.js";

/** @import { Context, ModelSize, Timing } from "../../lib/types.js" */

const TIMED_LENGTHS = [256, 512, 1024, 2048, 4096];
const MAX_TIMED_HEADS = 8; // the time of more heads is proportional

/**
 * The size of the timed call for a model; models with equal heads share their timings.
 * @param {ModelSize} model
 */
function timedHeadSize({ num_heads, embed_dim }) {
  return { num_heads: Math.min(num_heads, MAX_TIMED_HEADS), head_dim: Math.max(8, Math.round(embed_dim / num_heads)) };
}

/**
 * The timings of a model by mechanism: points [seq_len, seconds] in order of length.
 * @param {Timing[]} timings
 * @param {ModelSize} model
 */
export function timingsByMechanism(timings, model) {
  const { num_heads, head_dim } = timedHeadSize(model);
  /** @type {Map<string, Array<[number, number]>>} */
  const points = new Map();
  for (const timing of timings.slice().sort((a, b) => a.seq_len - b.seq_len)) {
    if (timing.num_heads !== num_heads || timing.head_dim !== head_dim) continue;
    points.set(timing.mechanism, [...(points.get(timing.mechanism) ?? []), [timing.seq_len, timing.seconds]]);
  }
  return points;
}

/**
 * Measures mechanisms one after another, short texts first.
 * @param {Context} context
 * @param {string[]} mechanisms
 * @param {ModelSize} model
 * @param {{showStatus: (text: string) => void, addTiming: (timing: Timing) => void,
 *          isCancelled: () => boolean}} callbacks
 */
export async function measureTimings(context, mechanisms, model, { showStatus, addTiming, isCancelled }) {
  for (const n of TIMED_LENGTHS) {
    for (const mechanism of mechanisms) {
      if (isCancelled()) return;
      showStatus(`Measuring ${mechanism} at ${formatCount(n)} tokens…`);
      try {
        const params = { mechanism, seq_len: n, ...timedHeadSize(model) };
        addTiming((await context.request("timing", params)).values);
      } catch (error) {
        context.showError(error);
      }
    }
  }
}
