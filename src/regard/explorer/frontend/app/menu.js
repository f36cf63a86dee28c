// The behavior of menus.

/**
 * Closes a menu when the focus leaves it, on a click outside of it, and on Escape.
 * @param {HTMLDetailsElement} menu
 * @param {HTMLElement} root the page
 */
export function closeOnLeave(menu, root) {
  /** @param {EventTarget | null} target */
  const isInside = (target) => target instanceof Node && menu.contains(target);
  menu.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !isInside(relatedTarget)) menu.open = false;
  });
  root.addEventListener("pointerdown", ({ target }) => {
    if (!isInside(target)) menu.open = false;
  });
  menu.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") menu.open = false;
  });
}
