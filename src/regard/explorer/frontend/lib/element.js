// Helpers that create DOM elements. Text is always inserted as text, never as markup.

/** @import { Child } from "./types.js" */

/**
 * Attributes and event listeners of an element. A listener is declared as a method, so that it may accept the type of
 * event that it listens to.
 * @typedef {{listener(event: Event): unknown}["listener"]} EventListener
 * @typedef {Record<string, string | number | boolean | null | undefined | EventListener>} Properties
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an HTML element. Properties that begin with "on" are event listeners; all others are attributes, which true
 * sets and false or null omits. Children are nodes or text; null is omitted.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 */
export function element(tag, properties = {}, ...children) {
  return setPropertiesAndChildren(document.createElement(tag), properties, children);
}

/**
 * Creates an SVG element; see `element`.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 */
export function svgElement(tag, properties = {}, ...children) {
  return setPropertiesAndChildren(document.createElementNS(SVG, tag), properties, children);
}

/**
 * @template {Element} Node
 * @param {Node} node
 * @param {Properties} properties
 * @param {readonly Child[]} children
 */
function setPropertiesAndChildren(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.replace(/^on/, ""), value);
    else if (name === "value" && "value" in node) node.value = value;
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...nodesOf(children));
  return node;
}

/**
 * The nodes and texts of nested lists of children, without null.
 * @param {Child} child
 * @returns {Array<Node | string>}
 */
function nodesOf(child) {
  if (child === null || child === undefined) return [];
  if (typeof child === "number") return [String(child)];
  return typeof child === "string" || child instanceof Node ? [child] : child.flatMap(nodesOf);
}

/**
 * Replaces the children of an element. The focus moves to the new control with the same accessible name.
 * @param {Element} node
 * @param {...Child} children
 */
export function replaceContent(node, ...children) {
  const root = node.getRootNode();
  const focused = root instanceof Document || root instanceof ShadowRoot ? root.activeElement : null;
  const name = focused && node.contains(focused) ? nameOf(focused) : null;
  node.replaceChildren(...nodesOf(children));
  if (name === null) return;
  const controls = /** @type {HTMLElement[]} */ ([...node.querySelectorAll("button, input, select, a")]);
  controls.find((control) => nameOf(control) === name)?.focus({ preventScroll: true });
}

/**
 * The accessible name of a control.
 * @param {Element} node
 */
function nameOf(node) {
  const label = "labels" in node ? /** @type {HTMLInputElement} */ (node).labels?.[0]?.textContent : null;
  return `${node.tagName} ${node.getAttribute("aria-label") ?? label ?? node.textContent}`;
}

/**
 * A button with a text; `properties` as in `element`.
 * @param {string} text
 * @param {() => unknown} onclick
 * @param {Properties} [properties]
 */
export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, text);
}

/**
 * A row of choices, one of them selected. `mark(name)` of the element selects a choice without a callback.
 * @template {string} Name
 * @param {string} label the accessible name
 * @param {ReadonlyArray<readonly [name: Name, text: string, tooltip?: string]>} choices
 * @param {NoInfer<Name>} selected
 * @param {(name: Name) => void} onSelect
 */
export function segmentedControl(label, choices, selected, onSelect) {
  const buttons = choices.map(([name, text, title]) => {
    const onClick = () => {
      mark(name);
      onSelect(name);
    };
    return button(text, onClick, { "data-name": name, title: title ?? null });
  });
  /** @param {Name} name */
  const mark = (name) => {
    for (const choice of buttons) choice.setAttribute("aria-pressed", String(choice.dataset.name === name));
  };
  mark(selected);
  const group = element("div", { class: "segmented-control", role: "group", "aria-label": label }, buttons);
  return Object.assign(group, { mark });
}

/**
 * A select box.
 * @param {string} label
 * @param {ReadonlyArray<readonly [value: string | number, text: string]>} options
 * @param {string | number | null} selected
 * @param {(value: string) => void} onSelect
 * @param {Properties} [properties]
 */
export function select(label, options, selected, onSelect, properties = {}) {
  const node = element("select", { "aria-label": label, ...properties });
  node.addEventListener("change", () => onSelect(node.value));
  for (const [value, text] of options) node.append(element("option", { value }, text));
  node.value = String(selected);
  return node;
}

/** @typedef {HTMLLabelElement & {setValue(value: number): void}} Slider */

/**
 * A slider with its label and its formatted value. `setValue(value)` of the element sets it without a callback.
 * @param {string} label
 * @param {[minimum: number, maximum: number, step: number]} range
 * @param {number} value
 * @param {(value: number) => string} format
 * @param {(value: number) => void} onInput
 * @returns {Slider}
 */
export function slider(label, [min, max, step], value, format, onInput) {
  const output = element("output", {}, format(value));
  const input = element("input", { type: "range", min, max, step, "aria-label": label, value });
  input.value = String(value);
  input.addEventListener("input", () => {
    output.textContent = format(Number(input.value));
    onInput(Number(input.value));
  });
  /** @param {number} next */
  const setValue = (next) => {
    input.value = String(next);
    output.textContent = format(next);
  };
  return Object.assign(element("label", { class: "slider" }, element("span", {}, label), input, output), { setValue });
}

/**
 * The drawing context of a canvas.
 * @param {HTMLCanvasElement} canvas
 */
export function context2d(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("The browser must support drawing on a canvas.");
  return context;
}

/**
 * Downloads a blob as a file.
 * @param {Blob} blob
 * @param {string} fileName
 */
export function downloadBlob(blob, fileName) {
  const url = URL.createObjectURL(blob);
  const link = element("a", { href: url, download: fileName });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
