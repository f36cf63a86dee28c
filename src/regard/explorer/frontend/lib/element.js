// Helpers that create DOM elements. Text is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an HTML element. Properties that begin with "on" are event listeners; all others are attributes, which true
 * sets and false or null omits. Children are nodes or text; null is omitted.
 * @param {string} tag
 * @param {Object} [properties]
 * @param {...(Node|string|number|null)} children
 */
export function element(tag, properties = {}, ...children) {
  return setPropertiesAndChildren(document.createElement(tag), properties, children);
}

/** Creates an SVG element; see `element`. */
export function svgElement(tag, properties = {}, ...children) {
  return setPropertiesAndChildren(document.createElementNS(SVG, tag), properties, children);
}

function setPropertiesAndChildren(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Replaces the children of an element. The focus moves to the new control with the same accessible name. */
export function replaceContent(node, ...children) {
  const focused = node.getRootNode().activeElement;
  const name = focused && node.contains(focused) ? nameOf(focused) : null;
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (name === null) return;
  const controls = [...node.querySelectorAll("button, input, select, a")];
  controls.find((control) => nameOf(control) === name)?.focus({ preventScroll: true });
}

/** The accessible name of a control. */
function nameOf(node) {
  return `${node.tagName} ${node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent}`;
}

/** A button with a text; `properties` as in `element`. */
export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, text);
}

/**
 * A row of choices, one of them selected. `mark(name)` of the element selects a choice without a callback.
 * @param {string} label the accessible name
 * @param {Array<[string, string, string?]>} choices name, text and tooltip
 * @param {string} selected
 * @param {(name: string) => void} onSelect
 */
export function segmentedControl(label, choices, selected, onSelect) {
  const group = element("div", { class: "segmented-control", role: "group", "aria-label": label });
  const mark = (name) => {
    for (const choice of group.children) choice.setAttribute("aria-pressed", String(choice.dataset.name === name));
  };
  for (const [name, text, title] of choices) {
    const onClick = () => {
      mark(name);
      onSelect(name);
    };
    group.append(button(text, onClick, { "data-name": name, title: title ?? null }));
  }
  mark(selected);
  group.mark = mark;
  return group;
}

/** A select box. @param {Array<[string|number, string]>} options value and text */
export function select(label, options, selected, onSelect, properties = {}) {
  const node = element("select", { "aria-label": label, onchange: () => onSelect(node.value), ...properties });
  for (const [value, text] of options) node.append(element("option", { value }, text));
  node.value = String(selected);
  return node;
}

/**
 * A slider with its label and its formatted value. `setValue(value)` of the element sets it without a callback.
 * @param {[number, number, number]} range minimum, maximum and step
 * @param {(value: number) => string} format
 * @param {(value: number) => void} onInput
 */
export function slider(label, [min, max, step], value, format, onInput) {
  const output = element("output", {}, format(value));
  const input = element("input", {
    type: "range",
    min,
    max,
    step,
    "aria-label": label,
    value,
  });
  input.value = value;
  input.addEventListener("input", () => {
    output.textContent = format(Number(input.value));
    onInput(Number(input.value));
  });
  const node = element("label", { class: "slider" }, element("span", {}, label), input, output);
  node.setValue = (next) => {
    input.value = next;
    output.textContent = format(Number(next));
  };
  return node;
}

/** Downloads a blob as a file. */
export function downloadBlob(blob, fileName) {
  const url = URL.createObjectURL(blob);
  const link = element("a", { href: url, download: fileName });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
