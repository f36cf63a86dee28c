// What an experiment claims: what a formula says, what was computed, and whether they agree.

import { element } from "./element.js";
import { number } from "./format.js";

const RELATIONS = { equal: "=", "at most": "≤", "at least": "≥" };

/** Claims that should hold, and formulas that one could believe and that do not. */
export function claimLists({ claims, wrong }) {
  return [
    list("What is claimed", claims, (claim) => claim.holds, ["agrees", "does not agree"]),
    list("Formulas that are wrong", wrong, (claim) => !claim.holds, ["rejected", "not rejected"]),
  ];
}

function list(title, claims, isRight, [right, not]) {
  if (!claims.length) return null;
  return element(
    "section",
    { class: "claims", "aria-label": title },
    element("h3", {}, title),
    element(
      "ul",
      {},
      claims.map((claim) => oneClaim(claim, isRight(claim), isRight(claim) ? right : not)),
    ),
  );
}

function oneClaim(claim, isRight, verdict) {
  return element(
    "li",
    { "data-holds": String(claim.holds), "data-error": claim.error },
    element("b", { class: isRight ? "yes" : "no" }, isRight ? "✓ " : "✕ ", verdict),
    element("p", {}, claim.says),
    element("p", { class: "sides" }, sides(claim)),
    element("p", { class: "hint" }, `off by ${short(claim.error)}, allowed ${short(claim.within)}: ${claim.because}`),
  );
}

/** Both sides: the numbers if they are few, else the first of them. */
function sides({ found, predicted, count, relation }) {
  const more = count > found.length ? ` … (${count} numbers)` : "";
  const row = (name, values) => [
    element("span", { class: "side-name" }, name),
    element("span", {}, `${values.map(short).join("  ")}${more}`),
  ];
  return element("span", { class: "side-rows" }, row("found", found), row(`${RELATIONS[relation]} formula`, predicted));
}

function short(x) {
  return x !== null && Number.isInteger(x) && Math.abs(x) < 1e6 ? String(x).replace("-", "−") : number(x, 4);
}
