// What the measures of heads are called, and what they say.

/** Name in the table: title and a sentence. Others keep their names. */
export const MEASURES = {
  entropy_share: [
    "Spread",
    "entropy as a share of the most there could be: 1 looks at everything alike, 0 at one token",
  ],
  entropy: ["Entropy", "of the weights of a query, in nats, as a mean over the queries"],
  confidence: ["Largest weight", "the mean of the largest weights"],
  distance: ["Distance", "how far away the weight is, in tokens"],
  previous: ["Previous token", "weight on the token before"],
  next: ["Next token", "weight on the token after"],
  self: ["Itself", "weight on the query's own token"],
  first: ["First token", "weight on the first token"],
  sink: ["Sink", "weight on the one key that gets most"],
  window: ["Near by", "weight on tokens near by"],
  separator: ["Separators", "weight on full stops, commas and the like"],
  duplicate: ["Same token", "weight on earlier occurrences of the same token"],
  induction: ["Induction", "weight on what followed the same token earlier"],
  positional: ["One distance", "queries whose largest weight is at one and the same distance"],
  alignment: ["Alignment", "how much a query tells about the key it looks at"],
  vertical: ["Columns", "weight on a few keys that everyone looks at"],
  slash: ["Diagonals", "weight on a few diagonals"],
};

export function measureTitle(name) {
  return MEASURES[name]?.[0] ?? name;
}

/** The columns of a table that are measures, those that are well known first. */
export function measuresIn(columns) {
  const known = Object.keys(MEASURES).filter((name) => columns.includes(name));
  const not = new Set([...known, "layer", "head", "path", "offset", "sink_at"]);
  return [...known, ...columns.filter((name) => !not.has(name) && !name.endsWith("_uniform"))];
}
