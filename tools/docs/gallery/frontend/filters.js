// The choice of properties in the hash of the address, such as #filter=causal+sparse.

const PREFIX = "#filter=";

/**
 * The properties that a hash selects, or null if it is the anchor of a heading.
 * @param {string} hash
 * @param {readonly string[]} known names of properties; others are ignored
 */
export function parseFilters(hash, known) {
  if (hash !== "" && !hash.startsWith(PREFIX)) return null;
  const names = hash.slice(PREFIX.length).split("+");
  return known.filter((name) => names.includes(name));
}

/** @param {readonly string[]} selected */
export function formatFilters(selected) {
  return selected.length ? PREFIX + selected.join("+") : "";
}
