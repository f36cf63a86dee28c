// The checkbox that hides the attention sink, and the badge shown while it is hidden.

import { element, replaceContent } from "../../lib/element.js";
import { formatPercent, quoteToken } from "../../lib/format.js";
import { isSinkHidden, selectLayer, selectSession, selectTokens } from "../../state/selectors.js";

/**
 * Shows the checkbox if the head has a sink.
 * @param {{sinkToggle: HTMLElement, badge: HTMLElement, mapInfo: Object}} parts
 */
export function drawSinkToggle({ store }, parts) {
  const state = store.get();
  const layer = selectLayer(state);
  const { sink } = parts.mapInfo;
  const token = sink ? quoteToken(selectTokens(selectSession(state), layer).columnLabels[sink.key]) : "";
  parts.badge.hidden = !isSinkHidden(state, layer, parts.mapInfo);
  parts.badge.textContent = `renormalized without ${token}`;
  if (!sink || !layer.can_hide_keys) return replaceContent(parts.sinkToggle);
  const checkbox = element("input", { type: "checkbox", onchange: () => store.set({ hideSink: checkbox.checked }) });
  checkbox.checked = state.hideSink;
  const title = `Sets the weight of ${token} to 0 and renormalizes each row.`;
  return replaceContent(
    parts.sinkToggle,
    element(
      "label",
      { class: "checkbox-label", title },
      checkbox,
      ` Hide the sink: ${token} (key ${sink.key}, mean weight ${formatPercent(sink.mass)})`,
    ),
  );
}
