// The stages of attention, computed by the modules of the explorer's exported page.

import { offlineSteps } from "../../../../src/regard/explorer/frontend/offline/offline-walkthrough.js";

/**
 * @import { Matrix, StageTemplates, Steps } from "../../../../src/regard/explorer/frontend/lib/types.js"
 * @import { StepsParams } from "../../../../src/regard/explorer/frontend/offline/offline-walkthrough.js"
 */

/**
 * The response of the endpoint `steps` to these parameters.
 * @param {StageTemplates} templates
 * @param {StepsParams} params
 */
export async function computeSteps(templates, params) {
  /** @type {import("../../../../src/regard/explorer/frontend/lib/types.js").StoredResponse} */
  const storedResponse = async (name) =>
    name === "stage_templates"
      ? /** @type {any} any: the response depends on the name */ ({ values: templates })
      : null;
  const response = await offlineSteps(storedResponse, "steps", { ...params });
  if (!response) throw new Error(`The mask must be one of ${Object.keys(templates.masks).join(", ")}.`);
  return /** @type {Steps} */ (response.values);
}

/**
 * The matrix of a stage.
 * @param {Steps} steps
 * @param {string} name
 */
export function stageMatrix({ stages }, name) {
  const stage = stages.find((candidate) => candidate.name === name);
  if (!stage) throw new Error(`The stage must be one of ${stages.map((other) => other.name).join(", ")}; got ${name}.`);
  return /** @type {Matrix} */ (stage.values);
}
