// Reconnects to a lost server: retries with growing delays until a server at this address proves that it has the key.
//
// The page does not send its key before that proof, because another program may use the port now.

/** @import { ConnectionStatus } from "../lib/types.js" */

const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 8000;
const ATTEMPT_TIMEOUT_MS = 5000;

export class Reconnection {
  /**
   * @param {string} base the page's URL; the first part of its path is the key
   * @param {(status: ConnectionStatus) => void} onStatus
   */
  constructor(base, onStatus) {
    this.base = new URL(base);
    this.onStatus = onStatus;
    /** @type {Promise<void> | null} */
    this.pendingRetry = null;
  }

  get isLost() {
    return this.pendingRetry !== null;
  }

  /** Resolves when the server is back. All callers share one series of attempts. */
  waitForServer() {
    this.pendingRetry ??= this.retryUntilBack().finally(() => {
      this.pendingRetry = null;
    });
    return this.pendingRetry;
  }

  async retryUntilBack() {
    this.onStatus("lost");
    for (let delay = FIRST_RETRY_MS; ; delay = Math.min(2 * delay, MAX_RETRY_MS)) {
      await new Promise((resolve) => {
        setTimeout(resolve, delay);
      });
      const status = await this.attempt();
      this.onStatus(status);
      if (status === "back") return;
    }
  }

  /**
   * Asks the server at this address for a proof.
   * @returns {Promise<ConnectionStatus>}
   */
  async attempt() {
    const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
    try {
      const response = await fetch(new URL(`/proof/${nonce}`, this.base), {
        signal: AbortSignal.timeout(ATTEMPT_TIMEOUT_MS),
      });
      const { proof } = await response.json();
      return proof === (await this.proof(nonce)) ? "back" : "other";
    } catch (error) {
      return error instanceof SyntaxError ? "other" : "lost";
    }
  }

  /**
   * The proof of a server that has the key: an HMAC of the port and the nonce.
   * @param {string} nonce
   */
  async proof(nonce) {
    /** @param {string} text */
    const bytes = (text) => new TextEncoder().encode(text);
    const algorithm = { name: "HMAC", hash: "SHA-256" };
    const secret = this.base.pathname.split("/")[1];
    const key = await crypto.subtle.importKey("raw", bytes(secret), algorithm, false, ["sign"]);
    return hex(new Uint8Array(await crypto.subtle.sign("HMAC", key, bytes(`${this.base.port} ${nonce}`))));
  }
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
