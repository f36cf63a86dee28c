// The data source of an exported file: its responses, and the responses that the page computes from them.

import { offlineCell } from "../offline/offline-cell.js";
import { offlineCost } from "../offline/offline-cost.js";
import { offlineThumbnails } from "../offline/offline-thumbnails.js";
import { offlineSteps } from "../offline/offline-walkthrough.js";
import { offlineWeights } from "../offline/offline-weights.js";
import { requestKey } from "./request-key.js";
import { decodeBase64, inflate, unpack } from "./unpack.js";

/** @import { EndpointName, Endpoints, OfflineEndpoint, Params, Payload, Source } from "../lib/types.js" */

/** @type {OfflineEndpoint[]} */
const OFFLINE_ENDPOINTS = [offlineWeights, offlineThumbnails, offlineCell, offlineCost, offlineSteps]; // tried in order
const MAX_UNPACKED_RESPONSES = 128; // in memory

/** The error for a response that an exported file does not contain. */
class NotInFile extends Error {
  name = "NotInFile";
}

/**
 * The responses in an exported file, and the responses that the page can compute from them.
 * @param {Record<string, string>} responses by `requestKey`: packed, compressed, in base64
 * @returns {Source}
 */
export function fileSource(responses) {
  /** @type {Map<string, Promise<Payload<any, any>>>} */
  const unpacked = new Map(); // any: the types of a response depend on its endpoint
  /**
   * @template {EndpointName} Name
   * @param {Name} name
   * @param {Params} params
   * @returns {Promise<Endpoints[Name] | null>}
   */
  const storedResponse = async (name, params) => {
    const key = requestKey(name, params);
    if (!(key in responses)) return null;
    const response = unpacked.get(key) ?? inflate(decodeBase64(responses[key])).then(unpack);
    unpacked.set(key, response);
    for (const oldest of unpacked.keys()) {
      if (unpacked.size <= MAX_UNPACKED_RESPONSES) break;
      unpacked.delete(oldest);
    }
    return response;
  };
  /**
   * @template {EndpointName} Name
   * @param {Name} name
   * @param {Params} params
   * @returns {Promise<Endpoints[Name]>}
   */
  const request = async (name, params) => {
    const stored = await storedResponse(name, params);
    if (stored) return stored;
    for (const compute of OFFLINE_ENDPOINTS) {
      const computed = await compute(storedResponse, name, params);
      if (computed) return /** @type {Endpoints[Name]} */ (computed);
    }
    throw new NotInFile("This file does not contain this data. Open the text with regard explore.");
  };
  return { kind: "file", request };
}
