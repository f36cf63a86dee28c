// Render the formulas of a page. Arithmatex has put each one into an element of this class.
const MAX_UNBROKEN_WIDTH_PX = 160;

/**
 * Keep a short formula on one line with the parenthesis before it and the punctuation after it.
 * @param {HTMLElement} formula
 */
function keepTogether(formula) {
  /** @type {NodeListOf<HTMLElement>} */
  const parts = formula.querySelectorAll(".base");
  if ([...parts].reduce((width, part) => width + part.offsetWidth, 0) > MAX_UNBROKEN_WIDTH_PX) {
    return;
  }
  const before = takeText(formula.previousSibling, /[(["]+$/);
  const after = takeText(formula.nextSibling, /^[)\]",.:;?!]+/);
  const unit = document.createElement("span");
  unit.className = "short-formula";
  formula.replaceWith(unit);
  unit.append(before, formula, after);
}

/**
 * Remove from a text node what the pattern matches, and return it.
 * @param {ChildNode | null} node
 * @param {RegExp} pattern
 */
function takeText(node, pattern) {
  if (!(node instanceof Text)) {
    return "";
  }
  const [text] = node.data.match(pattern) ?? [""];
  node.data = node.data.replace(pattern, "");
  return text;
}

document.addEventListener("DOMContentLoaded", () => {
  /** @type {NodeListOf<HTMLElement>} */
  const formulas = document.querySelectorAll(".arithmatex");
  for (const formula of formulas) {
    renderMathInElement(formula, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
    });
    if (formula.tagName === "SPAN") {
      keepTogether(formula);
    }
  }
});
