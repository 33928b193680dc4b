// A timeline of real ranks, drawn from its recorded events: to zoom into with mouse, finger or keys. No Python.

import { make, tell } from "./nodes.js";

const SVG = "http://www.w3.org/2000/svg";
const BAND = 56; // pixels of a rank: a lane of spans with its waits, a lane of calls
const LANE = 24;
const LEFT = 58; // the ranks' names
const AXIS = 26;
const LETTER = 7.2; // width of one in a box
const INSET = 5; // how much lower a span begins than the one around it
const NEAREST_US = 2; // of the window: no clock tells less
const OTHERS = "#BBBBBB"; // of spans without a colour of their own, as in the recorded picture

let patterns = 0;

/** A button in the recorded picture's figure, which puts the events in its place. */
export function offerTimeline(figure) {
  const picture = figure.querySelector(".course-picture");
  const button = make("button", { type: "button", className: "course-move" }, "Zoom into it");
  const status = make("p", { className: "course-status", role: "status" });
  let live = null;
  figure.querySelector("p:last-of-type").prepend(button, " ");
  figure.append(status);
  button.onclick = async () => {
    try {
      live ??= await load(figure);
      const shown = !live.isConnected;
      (shown ? picture : live).replaceWith(shown ? live : picture);
      button.textContent = shown ? "Back to the recorded picture" : "Zoom into it";
      if (shown) live.draw();
      tell(status, "");
    } catch (error) {
      console.error(error);
      tell(status, `The events did not load: ${error.message}. The recorded picture stays.`);
    }
  };
}

async function load(figure) {
  const found = await fetch(figure.dataset.trace);
  if (!found.ok) throw new Error(`${found.status} ${found.statusText}`);
  return view((await found.json()).traceEvents, JSON.parse(figure.dataset.colours));
}

/** The element of a timeline. draw() paints it as wide as it is. */
function view(trace, colours) {
  const events = place(trace.filter(({ ph }) => ph === "X"));
  const ranks = [...new Set(trace.map(({ pid }) => pid))].sort((one, other) => one - other);
  const [first, last] = [Math.min(...events.map(({ ts }) => ts)), Math.max(...events.map(({ ts, dur }) => ts + dur))];
  const height = ranks.length * BAND + AXIS;
  const said = make("p", { className: "course-status", role: "status" });
  const svg = node("svg", {
    role: "application", tabindex: 0, height, width: "100%",
    "aria-label": `Timeline of ${ranks.length} ranks. Left and right move in time, plus and minus zoom, 0 shows all, `
      + "down and up go to the next and the last event",
  });
  const hint = make("p", { className: "course-hint" }, "Drag to move, Ctrl and the wheel or a double click to zoom; "
    + "keys: ← → + − 0, and ↓ ↑ from event to event.");
  const el = make("div", { className: "course-timeline-view" }, buttons(), svg, hint, said);
  const hatch = `waiting-${patterns += 1}`;
  let [from, to] = [first, last];
  let chosen = -1;
  let dragged = null; // { x, from, to } where a pointer went down

  const room = () => Math.max(svg.clientWidth - LEFT - 8, 50);
  const at = (time) => LEFT + ((time - from) / (to - from)) * room();
  const timeAt = (x) => from + ((x - LEFT) / room()) * (to - from);

  function draw() {
    const parts = [node("defs", {}, node("pattern", {
      id: hatch, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    }, node("rect", { width: 6, height: 6, fill: "#ffffff" }), node("rect", { width: 1.5, height: 6, fill: "#777777" })))];
    parts.push(...axis());
    for (const [number, event] of events.entries()) {
      if (event.ts > to || event.ts + event.dur < from) continue;
      parts.push(...box(event, number));
    }
    ranks.forEach((rank, band) => {
      parts.push(node("rect", { x: 0, y: band * BAND, width: LEFT - 4, height: BAND, fill: "#ffffff" }));
      parts.push(text(4, band * BAND + LANE + 4, `rank ${rank}`, "#212121"));
    });
    svg.replaceChildren(...parts);
  }
  function box(event, number) {
    const x = Math.max(at(event.ts), LEFT);
    const width = Math.max(Math.min(at(event.ts + event.dur), LEFT + room()) - x, 1);
    const inset = event.cat === "compute" ? Math.min(INSET * event.depth, LANE - 8) : 0;
    const tall = event.cat === "communication" ? LANE / event.rows : LANE - inset;
    const y = ranks.indexOf(event.pid) * BAND + 2 + (event.cat === "communication" ? LANE + tall * event.row : inset);
    const fill = { waiting: `url(#${hatch})`, communication: colours.communication }[event.cat]
      ?? colours.compute[event.name] ?? OTHERS;
    const shape = node("rect", {
      x, y, width, height: tall, fill, "data-event": number,
      stroke: number === chosen ? "#212121" : "#ffffff", "stroke-width": number === chosen ? 2.5 : 0.5,
    });
    const words = event.cat === "waiting" || tall < 11 ? [] : [labelOf(event), event.name];
    const fits = words.find((each) => each.length * LETTER < width);
    return fits ? [shape, text(x + 3, y + tall / 2 + 4, fits, ink(fill))] : [shape];
  }
  function axis() {
    const [unit, scale] = last - first < 1e6 ? ["ms", 1e3] : ["s", 1e6];
    const step = niceStep((to - from) / Math.max(room() / 90, 1));
    const parts = [];
    for (let time = first + Math.ceil((from - first) / step) * step; time <= to; time += step) {
      const label = `${Number(((time - first) / scale).toPrecision(12))}`;
      parts.push(node("line", { x1: at(time), x2: at(time), y1: 0, y2: height - AXIS, stroke: "#dddddd" }));
      parts.push(text(at(time), height - 8, label, "#212121", "middle"));
    }
    return [...parts, text(4, height - 8, unit, "#212121")];
  }

  function show(newFrom, newTo) {
    const width = Math.min(Math.max(newTo - newFrom, NEAREST_US), last - first);
    from = Math.min(Math.max(newFrom, first), last - width);
    to = from + width;
    draw();
  }
  function zoom(factor, time = (from + to) / 2) {
    const width = Math.min(Math.max((to - from) / factor, NEAREST_US), last - first);
    const share = (time - from) / (to - from);
    show(time - share * width, time + (1 - share) * width);
  }
  function move(share) {
    const by = share * (to - from);
    show(from + by, to + by);
  }
  function choose(number) {
    if (number < 0 || number >= events.length) return;
    chosen = number;
    const { ts, dur } = events[number];
    if (ts + dur < from || ts > to) show(ts + dur / 2 - (to - from) / 2, ts + dur / 2 + (to - from) / 2);
    else draw();
    tell(said, describe(events[number], first));
  }

  function buttons() {
    const one = (words, label, does) => {
      const made = make("button", { type: "button", className: "course-move", ariaLabel: label, onclick: does }, words);
      return [made, " "];
    };
    return make("p", {}, ...one("+", "Zoom in", () => zoom(2)), ...one("−", "Zoom out", () => zoom(0.5)),
      ...one("All", "Show all", () => show(first, last)));
  }
  const keys = {
    "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5), 0: () => show(first, last),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
    ArrowDown: () => choose(Math.min(chosen + 1, events.length - 1)), ArrowUp: () => choose(Math.max(chosen - 1, 0)),
  };
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page's
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 200), timeAt(event.offsetX));
    else move(event.deltaX / room());
  }, { passive: false });
  svg.addEventListener("dblclick", (event) => zoom(2, timeAt(event.offsetX)));
  svg.addEventListener("pointerdown", (event) => {
    dragged = { x: event.clientX, from, to, moved: false, target: event.target };
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (dragged === null || (!dragged.moved && Math.abs(event.clientX - dragged.x) < 4)) return;
    dragged.moved = true;
    const by = ((dragged.x - event.clientX) / room()) * (dragged.to - dragged.from);
    show(dragged.from + by, dragged.to + by);
  });
  svg.addEventListener("pointerup", () => {
    const number = dragged && !dragged.moved ? dragged.target.dataset?.event : undefined;
    dragged = null;
    if (number !== undefined) choose(Number(number));
  });
  svg.addEventListener("pointercancel", () => { dragged = null; });
  new ResizeObserver(draw).observe(svg);
  return Object.assign(el, { draw });
}

/** Events with what their box needs: how many spans are around one, how many rows the calls of its rank have. */
function place(events) {
  const rows = new Map();
  const open = new Map(); // the spans around the present one, by rank
  const sorted = [...events].sort((one, other) => one.pid - other.pid || one.ts - other.ts || other.dur - one.dur);
  const placed = sorted.map((event) => {
    if (event.cat === "communication") rows.set(event.pid, Math.max(rows.get(event.pid) ?? 1, event.tid % 100 + 1));
    if (event.cat !== "compute") return { ...event, depth: 0, row: event.tid % 100 };
    const around = (open.get(event.pid) ?? []).filter(({ ts, dur }) => ts + dur > event.ts);
    open.set(event.pid, [...around, event]);
    return { ...event, depth: around.length, row: 0 };
  });
  const order = ["compute", "communication", "waiting"]; // what is painted later lies on top
  placed.sort((one, other) => order.indexOf(one.cat) - order.indexOf(other.cat));
  return placed.map((event) => ({ ...event, rows: rows.get(event.pid) ?? 1 }));
}

const labelOf = ({ name, args }) => [name, ...("bytes" in args ? [`${args.bytes.toLocaleString("en")} bytes`]
  : Object.values(args))].join(" ");

function describe(event, first) {
  const unit = (time) => (time < 1000 ? `${Number(time.toPrecision(3))} µs` : `${Number((time / 1000).toPrecision(4))} ms`);
  const labels = Object.entries(event.args).map(([name, value]) => `, ${name} ${value.toLocaleString("en")}`).join("");
  return `Rank ${event.pid}, ${event.cat}: ${event.name}${labels}; ${unit(event.dur)}, from ${unit(event.ts - first)} on.`;
}

/** 1, 2 or 5 times a power of ten, at least `least`. */
function niceStep(least) {
  const ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= least);
}

function ink(fill) {
  const part = (start) => (parseInt(fill.slice(start, start + 2), 16) / 255) ** 2.2;
  const light = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  return light > 0.18 ? "#212121" : "#ffffff";
}

function node(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...children);
  return made;
}

function text(x, y, words, fill, anchor = "start") {
  const made = node("text", { x, y, fill, "text-anchor": anchor, "font-size": 12, "pointer-events": "none" });
  made.textContent = words;
  return made;
}
