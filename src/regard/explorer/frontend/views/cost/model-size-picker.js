// The model size of the Cost view: selected by name, or entered.

import { element, select } from "../../lib/element.js";

/** @import { ModelSize } from "../../lib/types.js" */

const CUSTOM_SIZE = "custom";
/**
 * @typedef {"embed_dim" | "num_heads" | "num_layers" | "ffn_dim"} FieldName
 * @typedef {[name: FieldName, label: string, minimum: number, maximum: number]} SizeField
 * @type {SizeField[]}
 */
const FIELDS = [
  ["embed_dim", "Embedding dimension", 16, 65536],
  ["num_heads", "Heads", 1, 256],
  ["num_layers", "Layers", 1, 400],
  ["ffn_dim", "Feed-forward", 16, 262144],
];

/**
 * @param {Array<ModelSize & {title: string}>} sizes named model sizes
 * @param {ModelSize} model the selected size; this form changes it in place
 * @param {boolean} isEditable whether other sizes can be entered; an exported file contains only the named sizes
 * @param {() => void} onChange
 */
export function modelSizePicker(sizes, model, isEditable, onChange) {
  /** @type {Array<[number, string]>} */
  const named = sizes.map(({ title }, n) => [n, title]);
  const currentOption = () => {
    const index = sizes.findIndex((size) => isSame(size, model));
    return index < 0 ? CUSTOM_SIZE : String(index);
  };
  /** @type {Array<[number | string, string]>} */
  const options = isEditable ? [...named, [CUSTOM_SIZE, "custom"]] : named;
  const modelSelect = select("Model", options, currentOption(), (n) => {
    if (n === CUSTOM_SIZE) return;
    const { title: _, ...size } = sizes[Number(n)];
    Object.assign(model, size);
    for (const field of fields) field.update();
    onChange();
  });
  const onFieldChange = () => {
    modelSelect.value = currentOption();
    onChange();
  };
  const fields = isEditable
    ? [...FIELDS.map((field) => numberField(field, model, onFieldChange)), gatedField(model, onFieldChange)]
    : [];
  return element("div", { class: "option-row" }, element("label", { class: "field" }, "Model ", modelSelect), fields);
}

/**
 * @param {ModelSize} a
 * @param {ModelSize} b
 */
function isSame(a, b) {
  return a.gated === b.gated && FIELDS.every(([name]) => a[name] === b[name]);
}

/**
 * @param {SizeField} field
 * @param {ModelSize} model
 * @param {() => void} onChange
 */
function numberField([name, label, min, max], model, onChange) {
  const input = element("input", { type: "number", min, max, class: "short-input", "aria-label": label });
  input.addEventListener("input", () => {
    const value = Math.round(Number(input.value));
    if (!(value >= min && value <= max)) return;
    model[name] = value;
    onChange();
  });
  const update = () => {
    input.value = String(model[name]);
  };
  update();
  return Object.assign(element("label", { class: "field" }, `${label} `, input), { update });
}

/**
 * @param {ModelSize} model
 * @param {() => void} onChange
 */
function gatedField(model, onChange) {
  const checkbox = element("input", { type: "checkbox" });
  checkbox.addEventListener("change", () => {
    model.gated = checkbox.checked;
    onChange();
  });
  const node = element(
    "label",
    { class: "checkbox-label", title: "The feed-forward block has three matrices, as in SwiGLU" },
    checkbox,
    " Gated",
  );
  const update = () => {
    checkbox.checked = model.gated;
  };
  update();
  return Object.assign(node, { update });
}
