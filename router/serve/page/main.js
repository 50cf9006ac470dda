/* Start the page: the server's name, limits and arms, and the conversation. */

import { get } from "./api.js";
import { offer, startChat, suggest } from "./chat.js";
import { byId } from "./dom.js";
import { askForKey } from "./key.js";

const EVERY = 2; // seconds between two attempts, until the server answers

async function meet() {
  const note = byId("gone");
  try {
    const stats = await get("stats");
    byId("server").textContent = `${stats.target} · policy ${stats.policy ?? "none"}`;
    if (stats.limits) suggest(stats.limits);
    offer((await get("v1/models")).data.map(({ id }) => id));
    note.hidden = true;
  } catch (error) {
    const text = `${error.message} Asking again every ${EVERY} seconds.`;
    if (note.textContent !== text) note.textContent = text;
    note.hidden = false;
    setTimeout(meet, 1000 * EVERY);
  }
}

startChat();
meet();
byId("other-key").addEventListener("click", () => askForKey({ insist: true }));
if (matchMedia("(max-width: 50rem)").matches) byId("settings").open = false;
