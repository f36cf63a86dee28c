// Where curves of cost cross.

import { count } from "./format.js";

/** Each lies on the curve of the first that it names. */
export function crossingsOf(answer) {
  return (answer.crossings ?? []).map(({ one, length, text }) => {
    const curve = answer.curves.find((each) => each.name === one);
    return { x: length, y: between(answer.lengths, curve?.flops, length), text: count(length), words: text };
  });
}

/** One mark where several lie on one point. */
export function apart(crossings) {
  return crossings.filter(
    (each, n) =>
      !crossings
        .slice(0, n)
        .some((other) => Math.abs(Math.log(each.x / other.x)) < 0.02 && Math.abs(Math.log(each.y / other.y)) < 0.05),
  );
}

/** A value on a curve, as on a straight line between logarithms. */
function between(lengths, values, x) {
  if (!values) return null;
  for (let n = 1; n < lengths.length; n += 1) {
    if (x <= lengths[n] && x >= lengths[n - 1]) {
      const share = Math.log(x / lengths[n - 1]) / Math.log(lengths[n] / lengths[n - 1]);
      return values[n - 1] ** (1 - share) * values[n] ** share;
    }
  }
  return null;
}
