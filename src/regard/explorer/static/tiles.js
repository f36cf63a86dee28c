// Tiles of maps: asked for when somebody looks, a few at a time, the newest wish first; kept within a limit of bytes.

const AT_ONCE = 4;
const LIMIT = 128 * 2 ** 20;
const PAINTED = 256 * 256 * 4;

/**
 * @typedef {{mean: Float32Array, max: Float32Array, rows: number, columns: number, top: {mean: number, max: number}}} Tile
 */

/** All tiles that the page holds, whoever asked for them. */
export class Tiles {
  /** @param {{ask: Function}} source */
  constructor(source, limit = LIMIT) {
    this.source = source;
    this.limit = limit;
    this.bytes = 0;
    this.held = new Map(); // the least recently used come first
    this.running = new Map();
    this.wishes = new Map(); // by who wishes: what, in order, and whom to tell
    this.refused = new Map();
  }

  /** A tile that is here already; null otherwise. */
  get(key) {
    const tile = this.held.get(key);
    if (!tile) return null;
    this.held.delete(key);
    this.held.set(key, tile);
    return tile;
  }

  /**
   * What a viewer wants now, in order. What nobody wants any more is no longer asked for.
   * @param {object} viewer
   * @param {Array<{key: string, name: string, params: Object}>} questions
   * @param {(error: Error|null) => void} tell called when one arrived
   */
  want(viewer, questions, tell) {
    this.wishes.set(viewer, { questions, tell });
    const wanted = new Set([...this.wishes.values()].flatMap((wish) => wish.questions.map((each) => each.key)));
    for (const [key, stop] of this.running) {
      if (!wanted.has(key)) {
        stop.abort();
        this.running.delete(key);
      }
    }
    this.next();
  }

  /** A viewer that is gone. */
  leave(viewer) {
    this.want(viewer, [], () => {});
    this.wishes.delete(viewer);
  }

  next() {
    for (const { questions } of this.wishes.values()) {
      for (const each of questions) {
        if (this.running.size >= AT_ONCE) return;
        if (!this.held.has(each.key) && !this.running.has(each.key) && !this.refused.has(each.key)) this.ask(each);
      }
    }
  }

  async ask({ key, name, params }) {
    const stop = new AbortController();
    this.running.set(key, stop);
    let error = null;
    try {
      const { arrays } = await this.source.ask(name, params, stop.signal);
      if (stop.signal.aborted) return;
      this.keep(key, asTile(arrays));
    } catch (problem) {
      if (stop.signal.aborted) return;
      error = problem;
      this.refused.set(key, problem);
    }
    this.running.delete(key);
    for (const wish of this.wishes.values()) if (wish.questions.some((each) => each.key === key)) wish.tell(error);
    this.next();
  }

  keep(key, tile) {
    this.held.set(key, tile);
    this.bytes += size(tile);
    for (const [old, dropped] of this.held) {
      if (this.bytes <= this.limit || old === key) break;
      this.held.delete(old);
      this.bytes -= size(dropped);
    }
  }
}

function size(tile) {
  return tile.mean.byteLength + tile.max.byteLength + PAINTED;
}

/** @returns {Tile} */
function asTile({ mean, max = mean }) {
  const [rows, columns] = mean.shape;
  return { mean: mean.data, max: max.data, rows, columns, top: { mean: largest(mean.data), max: largest(max.data) } };
}

function largest(values) {
  let top = 0;
  for (const value of values) if (Math.abs(value) > top) top = Math.abs(value);
  return top;
}
