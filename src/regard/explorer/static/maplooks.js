// How the values of a map become colours, level by level.

import { ramp } from "./colour.js";
import { scaleOf, signedScale } from "./scale.js";

const KEPT = 16; // looks; counting ranks takes a while

export class MapLooks {
  constructor() {
    this.choice = { pool: "mean", scale: "linear", palette: "ink", theme: "light" };
    this.known = new Map();
    this.tops = new Map(); // the largest value of each level that was seen so far: what the strongest colour means
  }

  /** Forgets what was seen of another head. */
  forget() {
    this.tops.clear();
  }

  /** Takes notice of a tile's largest values. */
  see(level, tile) {
    for (const pool of ["mean", "max"]) {
      const name = `${level} ${pool}`;
      this.tops.set(name, Math.max(this.tops.get(name) ?? 0, tile.top[pool]));
    }
  }

  top(level) {
    return this.tops.get(`${level} ${this.choice.pool}`) ?? 0;
  }

  /**
   * The colours of a level.
   * @param {{name: string, signed?: boolean}} subject
   * @param {Array<{name: string, tile: import("./tiles.js").Tile}>} inView tiles among which values are ranked
   */
  of(subject, level, inView) {
    const { pool, scale, palette, theme } = this.choice;
    const signed = Boolean(subject.signed);
    const top = this.top(level);
    const ranked = scale === "rank" && !signed ? inView.map((each) => each.name).join() : "";
    const name = [subject.name, level, pool, scale, palette, theme, top, ranked].join(" ");
    if (this.known.has(name)) return this.known.get(name);
    const share = signed
      ? signedScale(scale, top)
      : scaleOf(scale, top, ranked ? inView.map(({ tile }) => tile[pool]) : []);
    const look = { name, colours: ramp(signed ? "difference" : palette, theme), share, signed, top };
    if (this.known.size >= KEPT) this.known.clear();
    this.known.set(name, look);
    return look;
  }
}
