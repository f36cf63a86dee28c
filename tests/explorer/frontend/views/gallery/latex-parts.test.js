import assert from "node:assert/strict";
import { test } from "node:test";
import { latexParts } from "../../../../../src/regard/explorer/frontend/views/gallery/latex-parts.js";

/** The parts as one text, with lowered parts in [] and raised parts in <>. */
const text = (parts) =>
  parts
    .map((part) => {
      if (typeof part === "string") return part;
      return part.kind === "sub" ? `[${text(part.parts)}]` : `<${text(part.parts)}>`;
    })
    .join("");

/** @type {Array<[latex: string, expected: string]>} */
const CASES = [
  ["s_{ij} = \\frac{q_i \\cdot k_j}{\\sqrt{d}}", "s[ij] = (q[i] · k[j]) / √d"],
  ["q_i^\\top W k_j", "q[i]ᵀ W k[j]"],
  ["-\\frac{|q_i - k_j|^2}{2 \\sigma^2}", "−(|q[i] − k[j]|<2>) / (2 σ<2>)"],
  ["\\mathrm{softmax}_j\\, u^\\top \\tanh(b)", "softmax[j] uᵀ tanh(b)"],
  ["\\hat q_i,\\quad \\lfloor i/c \\rfloor \\le \\ell", "q\u0302[i],\u2003⌊i/c⌋ ≤ ℓ"],
  ["a_i = \\arg\\min_{p \\in \\Delta} x", "a[i] = arg min[p ∈ Δ] x"],
  ["\\{c : i \\notin T\\}", "{c : i ∉ T}"],
  ["\\frac{1}{m} e^{2}, \\quad w = \\cos\\frac{\\pi (i - j)}{2 M}", "(1 / m)e<2>,\u2003w = cos((π(i − j)) / (2 M))"],
  ["\\gamma S, X \\in \\mathbb{R}^{n}", "γ S, X ∈ ℝ<n>"],
  ["n^{1.5} d_a", "n<1.5> d[a]"],
];

for (const [latex, expected] of CASES) {
  test(`the text of ${latex}`, () => assert.equal(text(latexParts(latex)), expected));
}
