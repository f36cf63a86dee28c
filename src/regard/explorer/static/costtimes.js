// Times that mechanisms took on the machine that answers, for heads of the model's width.

const LENGTHS = [256, 512, 1024, 2048, 4096];
const MOST_HEADS = 8; // more take longer in proportion

/** What is timed for a model: the same for all models that have heads alike. */
function sizeOf({ heads, width }) {
  return { heads: Math.min(heads, MOST_HEADS), width: Math.max(8, Math.round(width / heads)) };
}

/** The times of a model by mechanism: points [n, seconds], the short texts first. */
export function timesOf(timed, model) {
  const { heads, width } = sizeOf(model);
  const found = new Map();
  for (const each of timed.slice().sort((a, b) => a.n - b.n)) {
    if (each.heads !== heads || each.width !== width) continue;
    found.set(each.mechanism, [...(found.get(each.mechanism) ?? []), [each.n, each.seconds]]);
  }
  return found;
}

/**
 * Measures some mechanisms one after another, the short texts first.
 * @param {{tell: (words: string) => void, take: (found: Object) => void, isOver: () => boolean}} does
 */
export async function measureEach(context, mechanisms, model, { tell, take, isOver }) {
  for (const n of LENGTHS) {
    for (const mechanism of mechanisms) {
      if (isOver()) return;
      tell(`measuring ${mechanism} at ${n} tokens …`);
      try {
        take((await context.ask("timing", { mechanism, n, ...sizeOf(model) })).values);
      } catch (error) {
        context.fail(error);
      }
    }
  }
}
