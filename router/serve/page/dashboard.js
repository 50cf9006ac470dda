/* What the server does, from /stats, asked every two seconds while the page is in sight. */

import { get } from "./api.js";
import { byPosition, sparkline } from "./charts.js";
import { bar, byId, digits, duration, known, make, percent } from "./dom.js";

const EVERY = 2; // seconds
const SPAN = 300; // seconds of the chart
const parts = {
  words: make("p", { class: "empty" }),
  tiles: make("dl", { class: "tiles" }),
  speed: make("figure"),
  arms: make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Arms" }),
};
const samples = []; // {at, value}: tokens a second of all requests together

/** `back` is given the figures when the server answers for the first time, and when it does again. */
export function startDashboard(back) {
  let stats = null;
  let gone = null; // since when
  let due = 0;
  const poll = async () => {
    clearTimeout(due);
    try {
      stats = await get("stats");
      if (gone || !byId("server").textContent) back(stats);
      gone = null;
      remember(stats.tokens_per_s);
      byId("server").textContent = `${stats.target} · policy ${stats.policy ?? "none"}`;
    } catch (error) {
      gone = { since: gone?.since ?? new Date(), why: error.message };
    }
    tellWhetherGone(gone);
    draw(stats, gone);
    clearTimeout(due);
    if (!document.hidden) due = setTimeout(poll, 1000 * EVERY);
  };
  document.addEventListener("visibilitychange", () => document.hidden || poll());
  draw(null, null);
  poll();
}

function remember(value) {
  const at = performance.now() / 1000;
  samples.push({ at, value: known(value) ? value : 0 });
  while (samples[0].at < at - SPAN) samples.shift();
}

function tellWhetherGone(gone) {
  const note = byId("gone");
  note.hidden = !gone;
  const since = gone?.since.toLocaleTimeString();
  const text = gone ? `${gone.why} Since ${since}; asking again every ${EVERY} seconds.` : "";
  if (note.textContent !== text) note.textContent = text;
}

/** The parts stay and are filled anew, so that focus and scroll position are kept. */
function draw(stats, gone) {
  const place = byId("dashboard");
  if (!place.hasChildNodes()) place.append(...Object.values(parts));
  const arms = Object.entries(stats?.arms ?? {});
  arms.sort((one, other) => other[1].requests - one[1].requests);
  const asked = arms.reduce((sum, [, arm]) => sum + arm.requests, 0);
  const busy = asked > 0 || stats?.requests_running > 0;
  place.classList.toggle("stale", Boolean(gone));
  parts.words.replaceChildren(...inWords(stats, gone, busy));
  for (const part of [parts.tiles, parts.speed, parts.arms]) part.hidden = !stats;
  parts.speed.hidden ||= !busy;
  parts.arms.hidden ||= !busy;
  if (!stats) return;
  parts.tiles.replaceChildren(...tiles(stats, asked));
  parts.speed.replaceChildren(...speed());
  parts.arms.replaceChildren(table(arms));
}

function inWords(stats, gone, busy) {
  if (!stats) return [gone ? "There are no figures." : "Asking the server."];
  if (gone) return ["These are the last figures that the server gave."];
  if (busy) return [];
  return [
    "Nothing has been asked yet. Ask something under Chat, or send a request to ",
    make("code", {}, "/v1/chat/completions"),
    "; the arms and their acceptance then show here.",
  ];
}

function tiles(stats, asked) {
  const tile = (value, name) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const replicas = stats.replicas?.filter(({ answers }) => answers).length;
  return [
    tile(digits(stats.tokens_per_s), "tokens a second"),
    tile(String(stats.requests_running), "running"),
    tile(String(stats.requests_waiting), "waiting"),
    tile(String(asked), "requests"),
    tile(duration(stats.uptime_s), "up"),
    ...(known(replicas) ? [tile(String(replicas), "replicas")] : []),
  ];
}

function speed() {
  const values = samples.map(({ value }) => value);
  const [now, most] = [digits(values.at(-1)), digits(Math.max(...values))];
  const label = `Tokens a second over the last five minutes: now ${now}, at most ${most}`;
  return [
    make("figcaption", {}, make("h2", {}, "Tokens a second"), `at most ${most}`),
    sparkline(samples, { span: SPAN, gap: 3 * EVERY, label }),
    make(
      "p",
      { class: "ends soft", "aria-hidden": "true" },
      make("span", {}, "5 minutes ago"),
      make("span", {}, "now"),
    ),
  ];
}

const HEADS = [
  "Arm",
  "Share of requests",
  "Tokens a second",
  "Mean acceptance length",
  "Acceptance rate",
  "Acceptance by position",
];

function table(arms) {
  const heads = HEADS.map((head) => make("th", { scope: "col" }, head));
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...arms.map(([name, arm]) => row(name, arm))),
  );
}

function row(name, arm) {
  const positions = arm.accepted_per_position ?? [];
  const share = `${percent(arm.share)} (${arm.requests})`;
  const cells = [
    make("span", { class: "share" }, bar(arm.share), share),
    arm.requests ? digits(arm.tokens_per_s) : "–",
    arm.requests ? digits(arm.mean_acceptance_length) : "–",
    positions.length ? percent(arm.acceptance_rate) : "–",
    positions.length ? byPosition(positions) : arm.requests ? "drafted nothing" : "not asked yet",
  ];
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, name),
    ...cells.map((cell, i) => make("td", { "data-head": HEADS[i + 1] }, cell)),
  );
}
