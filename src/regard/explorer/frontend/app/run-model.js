// Runs a model on a text and opens the new session.

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
 * @param {() => Object} [patch] returns further state; called when the session opens
 */
export async function runModel(context, text, model, patch = () => ({})) {
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

async function runNewText(context, text, model, patch) {
  const onProgress = (message, fraction) => context.showProgress(message, fraction);
  context.runCount += 1;
  const runIndex = context.runCount;
  context.showProgress("running the model", null);
  try {
    const { values } = await context.requestCache.requestWithProgress("run_model", { text, model }, onProgress);
    if (runIndex !== context.runCount) return; // a later run has started
    await context.refresh({ ...INITIAL_SELECTION, ...patch(), session: values.id });
  } finally {
    if (runIndex === context.runCount) context.showProgress("");
  }
}
