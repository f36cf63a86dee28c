// The checkbox that hides the attention sink, and the badge shown while it is hidden.

import { element, replaceContent } from "../../lib/element.js";
import { formatPercent, quoteToken } from "../../lib/format.js";
import { isSinkHidden, selectHead, selectTokens } from "../../state/selectors.js";

/** @import { Context, MapInfo } from "../../lib/types.js" */

/**
 * Shows the checkbox if the head has a sink.
 * @param {Context} context
 * @param {{sinkToggle: HTMLElement, badge: HTMLElement}} parts
 * @param {MapInfo} mapInfo
 */
export function drawSinkToggle({ store }, parts, mapInfo) {
  const state = store.get();
  const { session, layer } = selectHead(state);
  const { sink } = mapInfo;
  const token = sink ? quoteToken(selectTokens(session, layer).columnLabels[sink.key]) : "";
  parts.badge.hidden = !isSinkHidden(state, layer, mapInfo);
  parts.badge.textContent = `renormalized without ${token}`;
  if (!sink || !layer.can_hide_keys) {
    replaceContent(parts.sinkToggle);
    return;
  }
  const checkbox = element("input", { type: "checkbox" });
  checkbox.addEventListener("change", () => store.set({ hideSink: checkbox.checked }));
  checkbox.checked = state.hideSink;
  const title = `Sets the weight of ${token} to 0 and renormalizes each row.`;
  replaceContent(
    parts.sinkToggle,
    element(
      "label",
      { class: "checkbox-label", title },
      checkbox,
      ` Hide the sink: ${token} (key ${sink.key}, mean weight ${formatPercent(sink.mass)})`,
    ),
  );
}
