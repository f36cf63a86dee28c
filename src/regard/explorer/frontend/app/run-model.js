// Runs a model on a text and opens the new session.

/** @import { PageContext, Session, State } from "../lib/types.js" */

/** @type {Partial<State>} */
const INITIAL_SELECTION = {
  query: null,
  key: null,
  hoveredCell: null,
  pinnedTokens: [],
  lineHeads: null,
  viewport: null,
  generationStep: null,
  lineStart: 0,
  scale: "auto",
};

/**
 * Runs a model on a text and opens the session. An existing session of the same text and model is opened without a run.
 * @param {PageContext} context
 * @param {string} text
 * @param {string} model
 * @param {() => Partial<State>} [patch] returns further state; called when the session opens
 */
export async function runModel(context, text, model, patch = () => ({})) {
  /** @param {Session} session */
  const isSame = (session) => session.text === text && session.model === model && !session.generation;
  if (context.store.get().serverState?.sessions.some(isSame)) {
    const { values: serverState } = await context.request("state", {}); // the server may have dropped the session
    const session = serverState.sessions.find(isSame);
    if (session) {
      context.runCount += 1; // cancels a run in progress
      context.showProgress("");
      context.applyServerState(serverState, { ...INITIAL_SELECTION, ...patch(), session: session.id });
      context.onResponse(true);
      return;
    }
  }
  await runNewText(context, text, model, patch);
}

/**
 * @param {PageContext} context
 * @param {string} text
 * @param {string} model
 * @param {() => Partial<State>} patch
 */
async function runNewText(context, text, model, patch) {
  context.runCount += 1;
  const runIndex = context.runCount;
  context.showProgress("running the model", null);
  try {
    const { values } = await context.requestCache.requestWithProgress(
      "run_model",
      { text, model },
      context.showProgress,
    );
    if (runIndex !== context.runCount) return; // a later run has started
    await context.refresh({ ...INITIAL_SELECTION, ...patch(), session: values.id });
  } finally {
    if (runIndex === context.runCount) context.showProgress("");
  }
}
