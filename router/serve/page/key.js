/* The server's key, asked for where the server wants one and kept for this tab. */

import { byId } from "./dom.js";

const PLACE = "draftpick-key";
let asking = null; // one dialog, however many requests wait for it
let declined = false;

export const key = () => sessionStorage.getItem(PLACE);

/**
 * Ask for the key; false where the user declined, now or, unless `insist`, before.
 * `wrong`: the server has just refused the one we have.
 */
export function askForKey({ wrong = false, insist = false } = {}) {
  if (asking) return asking;
  if (declined && !insist) return Promise.resolve(false);
  byId("key-says").textContent = wrong ? "The server refused this key." : "";
  const dialog = byId("key");
  const before = document.activeElement;
  asking = new Promise((resolve) => {
    const settle = (given) => {
      asking = null;
      declined = !given;
      byId("key-value").value = "";
      byId("other-key").hidden = false;
      resolve(given);
    };
    byId("key-form").onsubmit = () => {
      sessionStorage.setItem(PLACE, byId("key-value").value);
      dialog.returnValue = "given";
    };
    byId("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      before?.focus();
      settle(dialog.returnValue === "given");
    };
    dialog.returnValue = "";
    dialog.showModal();
    byId("key-value").focus();
  });
  return asking;
}
