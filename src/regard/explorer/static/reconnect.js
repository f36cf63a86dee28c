// Finds the server again after it was lost: attempts with growing pauses, until one at this address has the page's key.
//
// The key is not sent before the server has shown that it has it: another program may have taken the port meanwhile.

const FIRST_PAUSE = 500; // milliseconds
const LONGEST_PAUSE = 8000;
const TIMEOUT = 5000; // milliseconds of one attempt

/** What the page tells about its connection. @typedef {"lost"|"other"|"back"} Status */

export class Reconnection {
  /**
   * @param {string} base the page's address, whose first part is the key
   * @param {(status: Status) => void} tell
   */
  constructor(base, tell) {
    this.base = new URL(base);
    this.tell = tell;
    this.search = null;
  }

  get isLost() {
    return this.search !== null;
  }

  /** Resolves when the server is back; however many wait, one searches. */
  back() {
    this.search ??= this.attempts().finally(() => {
      this.search = null;
    });
    return this.search;
  }

  async attempts() {
    this.tell("lost");
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      await new Promise((done) => {
        setTimeout(done, pause);
      });
      const status = await this.attempt();
      this.tell(status);
      if (status === "back") return;
    }
  }

  /** @returns {Promise<Status>} */
  async attempt() {
    const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
    try {
      const answer = await fetch(new URL(`/proof/${nonce}`, this.base), { signal: AbortSignal.timeout(TIMEOUT) });
      const { proof } = await answer.json();
      return proof === (await this.proof(nonce)) ? "back" : "other";
    } catch (error) {
      return error.name === "SyntaxError" ? "other" : "lost";
    }
  }

  async proof(nonce) {
    const bytes = (text) => new TextEncoder().encode(text);
    const algorithm = { name: "HMAC", hash: "SHA-256" };
    const secret = this.base.pathname.split("/")[1];
    const key = await crypto.subtle.importKey("raw", bytes(secret), algorithm, false, ["sign"]);
    return hex(new Uint8Array(await crypto.subtle.sign("HMAC", key, bytes(`${this.base.port} ${nonce}`))));
  }
}

function hex(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
