/* Two small charts as SVG. Each has a label that says the same in words. */

import { makeSvg, percent } from "./dom.js";

const WIDTH = 150;
const HEIGHT = 64;
const LEFT = 30;
const BOTTOM = 14;

/** Acceptance by position: `shares` of the drafts, 0 to 1, whose i-th token was accepted. */
export function byPosition(shares) {
  const label = shares.map((share, i) => `position ${i + 1}: ${percent(share)}`).join(", ");
  const [right, floor, top] = [WIDTH - 6, HEIGHT - BOTTOM, 6];
  const x = (i) => LEFT + ((right - LEFT) * (i + 0.5)) / shares.length;
  const y = (share) => floor - (floor - top) * Math.min(1, Math.max(0, share));
  const points = shares.map((share, i) => [x(i), y(share)]);
  const text = (at, words, anchor) => makeSvg("text", { ...at, "text-anchor": anchor }, words);
  const line = (share) =>
    makeSvg("line", { class: "grid", x1: LEFT, x2: right, y1: y(share), y2: y(share) });
  return makeSvg(
    "svg",
    {
      class: "positions",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `Acceptance at ${label}`,
    },
    line(0),
    line(0.5),
    line(1),
    text({ x: LEFT - 4, y: y(1) + 3 }, "100%", "end"),
    text({ x: LEFT - 4, y: y(0) + 3 }, "0%", "end"),
    text({ x: x(0), y: HEIGHT - 2 }, "1", "middle"),
    shares.length > 1
      ? text({ x: x(shares.length - 1), y: HEIGHT - 2 }, String(shares.length), "middle")
      : null,
    makeSvg("polyline", { class: "line", points: points.map((at) => at.join(",")).join(" ") }),
    ...points.map(([cx, cy]) => makeSvg("circle", { class: "dot", cx, cy, r: 2.2 })),
  );
}

/**
 * Values over time. `samples`: {at, value}, `at` in seconds, the newest last; a gap longer than
 * `gap` breaks the line. `span`: seconds that the chart is wide.
 */
export function sparkline(samples, { span, gap, label }) {
  const [width, height] = [600, 80];
  const now = samples.at(-1)?.at ?? 0;
  const most = Math.max(1, ...samples.map(({ value }) => value));
  const x = (at) => width - (width * (now - at)) / span;
  const y = (value) => height - 2 - ((height - 6) * value) / most;
  let path = "";
  samples.forEach(({ at, value }, i) => {
    const joined = i > 0 && at - samples[i - 1].at <= gap;
    path += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return makeSvg(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    makeSvg("line", { class: "grid", x1: 0, x2: width, y1: height - 2, y2: height - 2 }),
    makeSvg("path", { class: "line", d: path || "M0 0" }),
  );
}
