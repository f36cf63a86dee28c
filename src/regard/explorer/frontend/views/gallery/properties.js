// The properties of mechanisms, by which the gallery filters. The gallery of the documentation uses this module too.

/**
 * Whether a mechanism has all selected properties.
 * @param {readonly string[]} properties
 * @param {readonly string[]} selected
 */
export function hasProperties(properties, selected) {
  return selected.every((name) => properties.includes(name));
}

/**
 * The selection after a click on a property, in the order of all properties.
 * @param {readonly string[]} all
 * @param {readonly string[]} selected
 * @param {string} name
 */
export function toggleProperty(all, selected, name) {
  return all.filter((other) => selected.includes(other) !== (other === name));
}
