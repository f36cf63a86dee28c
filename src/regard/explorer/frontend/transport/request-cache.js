// Requests to the data source: cached for small responses, with progress for long ones.

/** @import { EndpointName, Endpoints, OnProgress, Params, Payload, Request } from "../lib/types.js" */

const MAX_CACHED_RESPONSES = 200;
const PROGRESS_INTERVAL_MS = 400;

export class RequestCache {
  /**
   * @param {{request: Request}} source
   * @param {(isAction: boolean) => void} onResponse called after each successful response
   */
  constructor(source, onResponse = () => {}) {
    this.source = source;
    this.onResponse = onResponse;
    /** @type {Map<string, Promise<Payload<any, any>>>} */
    this.cachedResponses = new Map(); // any: the types of a response depend on its endpoint
    this.lastProgressId = 0;
  }

  /**
   * @template {EndpointName} Name
   * @param {Name} name
   * @param {Params} params
   * @param {AbortSignal} [signal]
   * @returns {Promise<Endpoints[Name]>}
   */
  async request(name, params, signal) {
    const response = await this.source.request(name, params, signal);
    this.onResponse(false);
    return response;
  }

  /**
   * The response to a request; equal requests share it until `stateVersion` changes.
   * @template {EndpointName} Name
   * @param {number} stateVersion
   * @param {Name} name
   * @param {Params} params
   * @returns {Promise<Endpoints[Name]>}
   */
  requestCached(stateVersion, name, params) {
    const key = `${stateVersion} ${name} ${JSON.stringify(params)}`;
    const cached = this.cachedResponses.get(key);
    if (cached) return cached;
    const response = this.request(name, params);
    this.cachedResponses.set(key, response);
    response.catch(() => this.cachedResponses.delete(key));
    for (const oldest of this.cachedResponses.keys()) {
      if (this.cachedResponses.size <= MAX_CACHED_RESPONSES) break;
      this.cachedResponses.delete(oldest);
    }
    return response;
  }

  /**
   * A long request. Until the response, `onProgress` is called with a text and the finished fraction, or null.
   * @template {EndpointName} Name
   * @param {Name} name
   * @param {Params} params
   * @param {OnProgress} onProgress
   * @returns {Promise<Endpoints[Name]>}
   */
  async requestWithProgress(name, params, onProgress) {
    this.lastProgressId += 1;
    const id = `page-${Date.now()}-${this.lastProgressId}`;
    let isFinished = false;
    let isPolling = false;
    const poll = async () => {
      if (isPolling) return; // at most one request at a time to a slow server
      isPolling = true;
      try {
        const { values } = await this.source.request("progress", { id });
        if (values.text && !isFinished) onProgress(values.text, values.fraction);
      } catch {
        /* the long request itself reports the error */
      } finally {
        isPolling = false;
      }
    };
    const timer = setInterval(poll, PROGRESS_INTERVAL_MS);
    try {
      const response = await this.source.request(name, { ...params, progress_id: id });
      this.onResponse(true);
      return response;
    } finally {
      isFinished = true;
      clearInterval(timer);
    }
  }
}
