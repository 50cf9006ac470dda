/* Start the page: the two views, the conversation and the dashboard. */

import { get } from "./api.js";
import { offer, startChat, suggest } from "./chat.js";
import { startDashboard } from "./dashboard.js";
import { byId } from "./dom.js";
import { askForKey } from "./key.js";

const VIEWS = ["chat", "dashboard"];

function show(view) {
  for (const name of VIEWS) {
    const tab = byId(`tab-${name}`);
    const shown = name === view;
    tab.setAttribute("aria-selected", String(shown));
    tab.setAttribute("tabindex", shown ? "0" : "-1");
    byId(name).hidden = !shown;
  }
}

function startViews() {
  const tabs = VIEWS.map((name) => byId(`tab-${name}`));
  const fromAddress = () => show(VIEWS.find((name) => `#${name}` === location.hash) ?? VIEWS[0]);
  const choose = (tab) => {
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    fromAddress();
    tab.focus();
    scrollTo(0, tab.id === "tab-chat" ? document.body.scrollHeight : 0);
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", ({ key }) => {
      if (key === "ArrowRight" || key === "ArrowLeft") choose(tabs[1 - i]);
    });
  });
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
}

async function loadModels() {
  try {
    offer((await get("v1/models")).data.map(({ id }) => id));
  } catch {
    // the dashboard says what is wrong, and asks again
  }
}

startViews();
startChat();
startDashboard((stats) => {
  if (stats.limits) suggest(stats.limits);
  loadModels();
});
byId("other-key").addEventListener("click", () => askForKey({ insist: true }));
if (matchMedia("(max-width: 50rem)").matches) byId("settings").open = false;
