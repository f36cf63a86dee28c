// Elements made by hand. Text always goes in as text and never as markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element. Properties beginning with "on" are listeners, `class` and everything else attributes;
 * true and false set and leave out. Children are nodes or text; null is left out.
 * @param {string} tag
 * @param {Object} [properties]
 * @param {...(Node|string|number|null)} children
 */
export function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for a drawing. */
export function drawn(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Takes out what an element holds and puts in something else; the focus stays on what has the same name. */
export function refill(node, ...children) {
  const focused = node.getRootNode().activeElement;
  const name = focused && node.contains(focused) ? nameOf(focused) : null;
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (name === null) return;
  const same = [...node.querySelectorAll("button, input, select, a")].find((each) => nameOf(each) === name);
  same?.focus({ preventScroll: true });
}

/** What a control is called, whoever made it. */
function nameOf(node) {
  return `${node.tagName} ${node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent}`;
}

/** A button that shows text; `properties` as in `element`. */
export function button(text, press, properties = {}) {
  return element("button", { type: "button", onclick: press, ...properties }, text);
}

/**
 * A few choices side by side, one of them pressed.
 * @param {string} label what is chosen, for readers of screens
 * @param {Array<[string, string, string?]>} choices name, text and a sentence that explains it
 * @param {string} chosen
 * @param {(name: string) => void} choose
 */
export function choice(label, choices, chosen, choose) {
  const group = element("div", { class: "choice", role: "group", "aria-label": label });
  const mark = (name) => {
    for (const each of group.children) each.setAttribute("aria-pressed", String(each.dataset.name === name));
  };
  for (const [name, text, title] of choices) {
    const pick = () => {
      mark(name);
      choose(name);
    };
    group.append(button(text, pick, { "data-name": name, title: title ?? null }));
  }
  mark(chosen);
  group.mark = mark;
  return group;
}

/** A list to choose from: pairs of value and text. */
export function select(label, options, chosen, choose, properties = {}) {
  const node = element("select", { "aria-label": label, onchange: () => choose(node.value), ...properties });
  for (const [value, text] of options) node.append(element("option", { value }, text));
  node.value = String(chosen);
  return node;
}

/** A slider with its name and its value in words. */
export function slider(label, range, value, words, slide) {
  const output = element("output", {}, words(value));
  const input = element("input", {
    type: "range",
    min: range[0],
    max: range[1],
    step: range[2],
    "aria-label": label,
    value,
  });
  input.value = value;
  input.addEventListener("input", () => {
    output.textContent = words(Number(input.value));
    slide(Number(input.value));
  });
  const node = element("label", { class: "slider" }, element("span", {}, label), input, output);
  node.put = (next) => {
    input.value = next;
    output.textContent = words(Number(next));
  };
  return node;
}

/** Lets the browser save something under a name. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
