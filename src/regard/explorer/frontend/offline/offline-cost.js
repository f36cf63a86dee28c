// Selects cost curves of mechanisms from an exported file, which contains all mechanisms for some model sizes.

/** @import { OfflineEndpoint } from "../lib/types.js" */

/**
 * The response of cost; null for other endpoints, and for model sizes that the file does not contain.
 * @type {OfflineEndpoint}
 */
export async function offlineCost(storedResponse, name, params) {
  if (name !== "cost") return null;
  const selected = /** @type {string[]} */ (params.mechanisms);
  const options = await storedResponse("cost_options", {});
  const mechanisms = options?.values.mechanisms.map(({ name: mechanism }) => mechanism);
  const all = mechanisms && (await storedResponse("cost", { ...params, mechanisms }));
  if (!all) return null;
  const { curves, crossovers = [], non_attention, ...values } = all.values;
  /** @param {string} curve */
  const isSelected = (curve) => curve === non_attention.name || selected.includes(curve);
  return {
    values: {
      ...values,
      non_attention,
      curves: curves.filter((curve) => isSelected(curve.name)),
      crossovers: crossovers.filter(({ first, second }) => isSelected(first) && isSelected(second)),
    },
    arrays: {},
  };
}
