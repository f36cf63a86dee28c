// The claims of an experiment: actual and expected numbers, and whether they agree.

import { element } from "../../lib/element.js";
import { formatIntegerOrNumber } from "../../lib/format.js";

/** @import { Claim, ExperimentResult } from "../../lib/types.js" */

const RELATIONS = { equal: "=", "at most": "≤", "at least": "≥" };

/**
 * The claims, which must hold, and the known-wrong formulas, which must not.
 * @param {ExperimentResult} result
 */
export function claimLists({ claims, false_claims }) {
  return [
    claimList("Claims", claims, (claim) => claim.holds, ["holds", "fails"]),
    claimList("Known-wrong formulas", false_claims, (claim) => !claim.holds, ["rejected", "not rejected"]),
  ];
}

/**
 * @param {string} title
 * @param {Claim[]} claims
 * @param {(claim: Claim) => boolean} isConfirmed
 * @param {[string, string]} verdicts
 */
function claimList(title, claims, isConfirmed, [confirmed, refuted]) {
  if (!claims.length) return null;
  return element(
    "section",
    { class: "claims", "aria-label": title },
    element("h3", {}, title),
    element(
      "ul",
      {},
      claims.map((claim) => claimItem(claim, isConfirmed(claim), isConfirmed(claim) ? confirmed : refuted)),
    ),
  );
}

/**
 * @param {Claim} claim
 * @param {boolean} isConfirmed
 * @param {string} verdict
 */
function claimItem(claim, isConfirmed, verdict) {
  const [error, tolerance] = [claim.max_error, claim.tolerance].map(formatIntegerOrNumber);
  return element(
    "li",
    { "data-holds": String(claim.holds), "data-max-error": claim.max_error },
    element("b", { class: isConfirmed ? "is-true" : "is-false" }, isConfirmed ? "✓ " : "✕ ", verdict),
    element("p", {}, claim.statement),
    element("p", { class: "claim-sides" }, claimValues(claim)),
    element("p", { class: "hint" }, `error ${error}, tolerance ${tolerance}: ${claim.tolerance_reason}`),
  );
}

/**
 * The first actual and expected numbers of a claim.
 * @param {Claim} claim
 */
function claimValues({ actual, expected, count, relation }) {
  const more = count > actual.length ? ` … (${count} numbers)` : "";
  /**
   * @param {string} name
   * @param {number[]} values
   */
  const row = (name, values) => [
    element("span", { class: "claim-value-name" }, name),
    element("span", {}, `${values.map(formatIntegerOrNumber).join("  ")}${more}`),
  ];
  return element(
    "span",
    { class: "claim-values" },
    row("actual", actual),
    row(`${RELATIONS[relation]} expected`, expected),
  );
}
