// Formulas in LaTeX as text with indices and exponents, for a page without a LaTeX renderer.

/**
 * A text, or parts that are lowered or raised.
 * @typedef {string | {kind: "sub" | "sup", parts: FormulaPart[]}} FormulaPart
 */

/** @type {Record<string, string>} */
const SYMBOLS = {
  alpha: "α",
  beta: "β",
  gamma: "γ",
  delta: "δ",
  Delta: "Δ",
  ell: "ℓ",
  mu: "μ",
  omega: "ω",
  phi: "φ",
  pi: "π",
  sigma: "σ",
  tau: "τ",
  cdot: " · ",
  times: " × ",
  le: " ≤ ",
  ge: " ≥ ",
  ne: " ≠ ",
  in: " ∈ ",
  notin: " ∉ ",
  to: " → ",
  cup: " ∪ ",
  bigcup: "⋃",
  sum: "Σ",
  top: "ᵀ",
  lfloor: "⌊",
  rfloor: "⌋",
  lVert: "‖",
  rVert: "‖",
  bmod: " mod ",
  quad: "   ",
  qquad: "   ",
  left: "",
  right: "",
  ",": " ",
  ";": " ",
  "!": "",
  " ": " ",
};
/** @type {Record<string, string>} */
const ACCENTS = { hat: "\u0302", tilde: "\u0303", bar: "\u0304" };
const FRACTIONS = ["frac", "tfrac"];
const AFTER_FRACTION = ["", ",", ")", "}", "=", "\\quad", "\\right"]; // tokens that are not factors
const FONTS = ["mathrm", "operatorname", "text"];
const TOKEN = /\\(?:[a-zA-Z]+|.)|[{}^_]|\s+|[^\\{}^_\s]/gy;

/**
 * The parts of a formula.
 * @param {string} latex
 * @returns {FormulaPart[]}
 */
export function latexParts(latex) {
  const tokens = latex.match(TOKEN) ?? [];
  return merged(readUntil(tokens, () => tokens.length === 0));
}

/**
 * @param {string[]} tokens
 * @param {() => boolean} isEnd
 */
function readUntil(tokens, isEnd) {
  /** @type {FormulaPart[]} */
  const parts = [];
  while (tokens.length && !isEnd()) parts.push(...readItem(tokens));
  return parts;
}

/**
 * The next group, command or character; the tokens that it takes are removed.
 * @param {string[]} tokens
 * @returns {FormulaPart[]}
 */
function readItem(tokens) {
  const token = tokens.shift() ?? "";
  if (token === "{") {
    const parts = readUntil(tokens, () => tokens[0] === "}");
    tokens.shift();
    return parts;
  }
  if (token === "^" || token === "_") return readScript(token, tokens);
  if (!token.startsWith("\\")) return [formatCharacter(token)];
  const name = token.slice(1);
  if (isWord(name)) skipSpaces(tokens); // LaTeX ignores spaces after a command
  if (FRACTIONS.includes(name)) return readFraction(tokens);
  if (name === "sqrt") return ["√", ...grouped(readArgument(tokens))];
  if (name in ACCENTS) return [...readArgument(tokens), ACCENTS[name]];
  if (name === "mathbb") return [...readArgument(tokens)].map((part) => (part === "R" ? "ℝ" : part));
  if (FONTS.includes(name)) return readArgument(tokens);
  const next = tokens[0] ?? "";
  const symbol = SYMBOLS[name] ?? name;
  if (FRACTIONS.includes(next.slice(1))) return [symbol, "(", ...readItem(tokens), ")"];
  const isBeforeFactor = /^[a-zA-Z0-9\\]/.test(next) && /^[a-zA-Zα-ω]/.test(symbol);
  return [isBeforeFactor && isWord(name) ? `${symbol} ` : symbol];
}

/**
 * A fraction; it is in parentheses if a factor follows.
 * @param {string[]} tokens
 */
function readFraction(tokens) {
  const parts = [...grouped(readArgument(tokens)), " / ", ...grouped(readArgument(tokens))];
  skipSpaces(tokens);
  return AFTER_FRACTION.includes(tokens[0] ?? "") ? parts : ["(", ...parts, ")"];
}

/** @param {string[]} tokens */
function skipSpaces(tokens) {
  while (tokens[0]?.trim() === "") tokens.shift();
}

/** @param {string} name */
function isWord(name) {
  return /^[a-zA-Z]/.test(name);
}

/** @param {string[]} tokens */
function readArgument(tokens) {
  skipSpaces(tokens);
  return readItem(tokens);
}

/**
 * @param {string} token
 * @param {string[]} tokens
 * @returns {FormulaPart[]}
 */
function readScript(token, tokens) {
  const parts = merged(readArgument(tokens));
  if (parts.length === 1 && parts[0] === "ᵀ") return ["ᵀ "];
  return [{ kind: token === "_" ? "sub" : "sup", parts }];
}

/** @param {string} character */
function formatCharacter(character) {
  if ("=<>".includes(character)) return ` ${character} `;
  return character === "-" ? "−" : character.trim() === "" ? " " : character;
}

/**
 * Parts in parentheses if they are a sum, a product or a list.
 * @param {FormulaPart[]} parts
 */
function grouped(parts) {
  const text = parts.map((part) => (typeof part === "string" ? part : "")).join("");
  return /[\s+−·/]/.test(text.trim()) ? ["(", ...merged(parts), ")"] : parts;
}

/**
 * Joins adjacent texts; several spaces become one, or three between formulas.
 * @param {FormulaPart[]} parts
 */
function merged(parts) {
  /** @type {FormulaPart[]} */
  const result = [];
  for (const part of parts) {
    const last = result.at(-1);
    if (typeof part === "string" && typeof last === "string") result[result.length - 1] = last + part;
    else result.push(part);
  }
  const cleaned = result.map((part) =>
    typeof part === "string"
      ? part
          .replace(/ {3,}/g, "\u2003")
          .replace(/ +/g, " ")
          .replace(/ ([,)⌋])/g, "$1")
      : part,
  );
  const first = cleaned[0];
  const end = cleaned.at(-1);
  if (typeof first === "string") cleaned[0] = first.trimStart();
  if (typeof end === "string")
    cleaned[cleaned.length - 1] = (cleaned.length === 1 ? String(cleaned[0]) : end).trimEnd();
  return cleaned;
}
