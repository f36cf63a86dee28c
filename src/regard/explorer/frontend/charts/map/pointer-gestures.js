// Gestures on a map: translates wheel, drag, pinch and keys to zoom, pan, point and pick.

const MAX_CLICK_MOVE_PX = 4; // a longer movement is a drag

/**
 * What happens on a gesture; positions are in pixels relative to the element. Keys zoom and open without a position.
 * @typedef {Object} MapHandlers
 * @property {(factor: number, x?: number, y?: number) => void} zoom
 * @property {(x: number, y: number) => void} pan
 * @property {(x: number, y: number) => void} [point]
 * @property {(x: number, y: number) => void} [pick]
 * @property {(x?: number, y?: number) => void} [open]
 * @property {(down: number, right: number) => void} [step]
 * @property {() => void} [fit]
 */

/**
 * Calls handlers on gestures.
 * @param {HTMLElement} node
 * @param {MapHandlers} handlers
 */
export function addMapGestures(node, handlers) {
  /** @type {Map<number, [number, number]>} */
  const pointers = new Map();
  let distance = 0; // since the first pointer went down
  /**
   * @param {MouseEvent} event
   * @returns {[number, number]}
   */
  const position = (event) => {
    const box = node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  node.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 20 : 1;
      handlers.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0018)), ...position(event));
      handlers.point?.(...position(event)); // after the zoom, another cell is under the cursor
    },
    { passive: false },
  );
  node.addEventListener("pointerdown", (event) => {
    node.setPointerCapture(event.pointerId);
    if (!pointers.size) distance = 0;
    pointers.set(event.pointerId, position(event));
  });
  node.addEventListener("pointermove", (event) => {
    const current = position(event);
    const previous = pointers.get(event.pointerId);
    if (!previous) {
      handlers.point?.(...current);
      return;
    }
    const before = centerAndSpread(pointers);
    pointers.set(event.pointerId, current);
    const after = centerAndSpread(pointers);
    distance += Math.hypot(current[0] - previous[0], current[1] - previous[1]);
    if (distance < MAX_CLICK_MOVE_PX) return;
    handlers.pan(after.x - before.x, after.y - before.y);
    if (pointers.size > 1 && before.spread > 0) handlers.zoom(after.spread / before.spread, after.x, after.y);
  });
  /** @param {PointerEvent} event */
  const onPointerEnd = (event) => {
    const wasDown = pointers.delete(event.pointerId);
    const isClick = event.type === "pointerup" && wasDown && distance < MAX_CLICK_MOVE_PX && !pointers.size;
    if (isClick) handlers.pick?.(...position(event));
  };
  node.addEventListener("pointerup", onPointerEnd);
  node.addEventListener("pointercancel", onPointerEnd);
  node.addEventListener("pointerleave", () => {
    if (!pointers.size) handlers.point?.(-1, -1);
  });
  node.addEventListener("dblclick", (event) => handlers.open?.(...position(event)));
  node.addEventListener("keydown", (event) => handleKey(event, handlers));
}

/**
 * The center of the pointers, and the sum of their distances from it.
 * @param {Map<number, [number, number]>} pointers
 */
function centerAndSpread(pointers) {
  const points = [...pointers.values()];
  const x = points.reduce((sum, p) => sum + p[0], 0) / points.length;
  const y = points.reduce((sum, p) => sum + p[1], 0) / points.length;
  return { x, y, spread: points.reduce((sum, p) => sum + Math.hypot(p[0] - x, p[1] - y), 0) };
}

/** @type {Record<string, [down: number, right: number]>} */
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @param {KeyboardEvent} event
 * @param {MapHandlers} handlers
 */
function handleKey(event, handlers) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const cells = event.shiftKey ? 10 : 1;
  if (STEPS[event.key]) handlers.step?.(cells * STEPS[event.key][0], cells * STEPS[event.key][1]);
  else if (event.key === "+" || event.key === "=") handlers.zoom(1.6);
  else if (event.key === "-") handlers.zoom(1 / 1.6);
  else if (event.key === "0") handlers.fit?.();
  else if (event.key === "Enter") handlers.open?.();
  else return;
  event.preventDefault();
}
