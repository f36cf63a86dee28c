// The form that selects the two sessions to compare, or runs a model on another text.

import { element, replaceContent, select } from "../../lib/element.js";
import { clampSelection, selectHead } from "../../state/selectors.js";

/** @import { Context, Session } from "../../lib/types.js" */

const MAX_PREFILL_CHARACTERS = 2000;

/**
 * Fills the form.
 * @param {Context} context
 * @param {HTMLFormElement} form
 * @param {Session | null} other the second session, if there is one
 */
export function drawSessionPicker(context, form, other) {
  const { store, source } = context;
  const state = store.get();
  /** @param {number | null} excludedId */
  const options = (excludedId) => {
    const sessions = (state.serverState?.sessions ?? []).filter(({ id }) => id !== excludedId);
    return sessions.map(({ id, title }) => /** @type {[number, string]} */ ([id, `${id}: ${title}`]));
  };
  /** @param {string} id */
  const selectFirst = (id) => store.set({ session: Number(id), ...clampSelection({ ...state, session: Number(id) }) });
  /**
   * @param {string} label
   * @param {HTMLElement} control
   */
  const field = (label, control) => element("label", { class: "field" }, label, control);
  replaceContent(
    form,
    field("First ", select("First", options(null), state.session, selectFirst)),
    other
      ? field(
          "Second ",
          select("Second", options(state.session), other.id, (id) => store.set({ otherSession: Number(id) })),
        )
      : null,
    source.kind === "server" ? newTextFields(context, form) : null,
  );
}

/**
 * The fields of a new text and its model.
 * @param {Context} context
 * @param {HTMLFormElement} form
 */
function newTextFields(context, form) {
  const state = context.store.get();
  const { session } = selectHead(state);
  const text = element("input", {
    type: "text",
    placeholder: "Another text",
    "aria-label": "Another text",
    class: "wide-input",
    value: session.text?.slice(0, MAX_PREFILL_CHARACTERS) ?? "",
  });
  /** @type {Array<[string, string]>} */
  const names = (state.serverState?.models ?? []).map(({ name }) => [name, name]);
  const model = select("Model of the other text", names, session.model, () => {});
  const submit = element("button", { type: "submit", class: "primary" }, "Compare");
  form.onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const params = { text: text.value, model: model.value };
      const { values } = await context.requestCache.requestWithProgress("run_model", params, context.showProgress);
      await context.refresh({ otherSession: values.id });
    } catch (error) {
      context.showError(error);
    } finally {
      submit.disabled = false;
      context.showProgress("");
    }
  };
  return [text, model, submit];
}
