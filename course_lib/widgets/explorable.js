// What every widget's JavaScript stands on. base.py puts this file, with PALETTE, in front of the widget's own, so its
// functions are simply there. Plain JavaScript for the browser: no package, no build.
//
//   element, svg        make nodes                    slider, chooser, button   controls with accessible names
//   shell               the parts of a widget         player                    play, reset and a step slider
//   newId               an id of its own              leaveOnEscape             the way back to the cell
//
// Every control stops JupyterLab's own shortcuts (data-lm-suppress-shortcuts): Lab would take arrow keys from a slider.

const SVG = "http://www.w3.org/2000/svg";
const LEAST_WIDTH = 780; // of a picture on the screen, in pixels: below it letters are too small, and it scrolls

/**
 * An id that nothing else in the page has. anywidget loads this file anew for each widget, and two notebooks may be open
 * in one page, so the page keeps the count. (crypto.randomUUID is missing where a server is reached without TLS.)
 */
function newId() {
  globalThis.explorableIds = (globalThis.explorableIds ?? 0) + 1;
  return `explorable-${globalThis.explorableIds}`;
}

/** An HTML element with attributes (a function becomes a listener) and children. */
function element(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Rounded for attributes: no picture needs more than a hundredth of a pixel. */
const px = (value) => Math.round(100 * value) / 100;

const prefersReducedMotion = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

/** A slider over `values`, whole numbers in increasing order. set(value, values) moves it without calling onInput. */
function slider({ label, values, value, onInput, show = String }) {
  const id = newId();
  const input = element("input", {
    id, type: "range", step: 1, "data-lm-suppress-shortcuts": "true",
    input: () => { const chosen = values[Number(input.value)]; say(chosen); onInput(chosen); }, // read before a redraw
  });
  const output = element("output", { for: id });
  function say(chosen) {
    output.textContent = show(chosen);
    input.setAttribute("aria-valuetext", show(chosen));
  }
  function set(chosen, among = values) {
    values = among;
    output.style.minWidth = `${Math.max(...values.map((each) => show(each).length))}ch`; // or the controls move about
    input.min = 0;
    input.max = values.length - 1;
    input.value = values.indexOf(chosen);
    say(chosen);
  }
  set(value);
  return { node: inControl(id, label, input, output), set, enable: (enabled) => { input.disabled = !enabled; } };
}

/** A drop-down of `labels`, which have places from 0 on. set(place, labels) does not call onChange. */
function chooser({ label, labels, value, onChange }) {
  const id = newId();
  const select = element("select", {
    id, "data-lm-suppress-shortcuts": "true", change: () => onChange(Number(select.value)),
  });
  let shown = null;
  function set(place, among) {
    if (among.join("\n") !== shown) {
      shown = among.join("\n");
      select.replaceChildren(...among.map((words, number) => element("option", { value: number }, words)));
    }
    select.value = place;
  }
  set(value, labels);
  return { node: inControl(id, label, select), set, enable: (enabled) => { select.disabled = !enabled; } };
}

const inControl = (id, label, ...nodes) => (
  element("div", { class: "control" }, element("label", { for: id }, label), ...nodes));

function button({ label, text, primary = false, onClick }) {
  const node = element("button", {
    type: "button", class: primary ? "primary" : "", "aria-label": label, "data-lm-suppress-shortcuts": "true",
    click: onClick,
  }, text);
  function set(newLabel, newText) {
    node.setAttribute("aria-label", newLabel);
    node.textContent = newText;
  }
  return { node, set };
}

/**
 * The way out of a widget, for the keyboard: Escape gives the focus to its cell, and Shift+Enter runs that cell, as
 * JupyterLab's users expect of both. Elsewhere there is no such cell, and keys do what they always do.
 */
function leaveOnEscape(root) {
  root.addEventListener("keydown", (event) => {
    const runs = event.key === "Enter" && event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey;
    const cell = event.key === "Escape" || runs ? root.closest(".jp-Cell") : null;
    if (cell === null || isOpen(event.target)) return;
    event.preventDefault();
    event.stopPropagation();
    cell.focus();
    if (!runs) return;
    const { key, code, keyCode, shiftKey } = event; // controls keep their keys from JupyterLab; the cell does not
    cell.dispatchEvent(new KeyboardEvent("keydown", { key, code, keyCode, shiftKey, bubbles: true, cancelable: true }));
  });
}

/** Whether a node is a drop-down that shows its list, which Escape closes. Chromium sends such keys to the list alone. */
const isOpen = (node) => CSS.supports("selector(:open)") && node.matches("select:open");

/** The parts of a widget: controls, headline, detail and picture. draw(key, description, svgNode) replaces the picture. */
function shell(root, controls) {
  const headline = element("div", { class: "headline", "aria-live": "polite" });
  const detail = element("div", { class: "detail" });
  const picture = element("div", { class: "picture" });
  const scroller = element("div", { class: "scroller" }, picture);
  root.classList.add("explorable");
  root.replaceChildren(element("div", { class: "controls" }, ...controls.map((control) => control.node)),
    headline, detail, scroller);
  leaveOnEscape(root);
  new ResizeObserver(() => reachByKeyboard(scroller)).observe(scroller);
  return {
    say(newHeadline, newDetail) {
      if (headline.textContent !== newHeadline) headline.textContent = newHeadline; // or it is announced again
      detail.textContent = newDetail;
    },
    draw(key, description, node) {
      furnish(node, { role: "img", "aria-label": description, "data-key": key }, []);
      node.style.minWidth = `${LEAST_WIDTH}px`;
      if (picture.firstChild !== node) picture.replaceChildren(node);
    },
  };
}

/** Where a picture is wider than its place, the keyboard must come to it, too, and its arrow keys move it. */
function reachByKeyboard(scroller) {
  const scrolls = scroller.scrollWidth > scroller.clientWidth;
  const reached = {
    tabindex: 0, role: "group", "aria-label": "the picture, wider than its place", "data-lm-suppress-shortcuts": "true",
  };
  if (scrolls) furnish(scroller, reached, []);
  else Object.keys(reached).forEach((name) => scroller.removeAttribute(name));
}

/**
 * Play and a step slider over the film that Python has sent; the step is the trait `step`, which nobody waits for.
 *
 * draw(step, playing) shows a step at rest. move(step, share) shows it on its way, 0 <= share < 1, once for each frame
 * of the screen; readers who want no motion see one step after the other instead. Call close() when the widget goes.
 */
function player(model, { draw, move, moveMs = 900, restMs = 500 }) {
  const last = () => model.get("frames").scenes.length - 1;
  const step = () => Math.min(model.get("step"), last());
  const all = () => Array.from({ length: last() + 1 }, (_, number) => number);
  let request = null; // the animation frame asked for while it plays
  let onItsWay = false; // whether play is showing how the present step comes about

  const play = button({ label: "Play", text: "▶ Play", primary: true, onClick: () => (request ? pause() : start()) });
  const reset = button({ label: "Back to step 0", text: "↺ Reset", onClick: () => { stop(); go(0); } });
  const steps = slider({
    label: "step", values: all(), value: step(), show: (number) => `${number} of ${last()}`,
    onInput: (number) => { stop(); go(number); },
  });
  const redraw = () => draw(step(), request !== null);
  const onStep = () => { steps.set(step()); if (onItsWay) move(step(), 0); else redraw(); };
  const onFrames = () => { stop(); steps.set(step(), all()); redraw(); };
  model.on("change:step", onStep);
  model.on("change:frames", onFrames);

  function go(number, moving = false) {
    onItsWay = moving;
    model.set("step", number); // draws
    model.save_changes(); // for Python; nothing waits for it
  }
  function start() {
    let began = null;
    const turn = (now) => {
      request = requestAnimationFrame(turn);
      if (began === null || now - began >= moveMs + restMs) {
        if (step() >= last()) return stop();
        began = now;
        return go(step() + 1, !prefersReducedMotion());
      }
      if (!onItsWay) return undefined;
      if (now - began < moveMs) return move(step(), eased((now - began) / moveMs));
      onItsWay = false;
      return redraw();
    };
    if (step() >= last()) go(0);
    request = requestAnimationFrame(turn);
    play.set("Pause", "❚❚ Pause");
  }
  function stop() {
    cancelAnimationFrame(request);
    request = null;
    onItsWay = false;
    play.set("Play", "▶ Play");
  }
  function pause() {
    stop();
    redraw();
  }
  function close() {
    stop();
    model.off("change:step", onStep);
    model.off("change:frames", onFrames);
  }
  return { controls: [play, reset, steps], redraw, close };
}

/** Slow at both ends: where a thing is at this share of its time. */
const eased = (share) => share * share * (3 - 2 * share);
