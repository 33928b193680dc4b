// The widgets, predictions and answers of a static page. Every page loads this file; __init__.py says what a page has.

import { SCRIPTS } from "./course.js";
import { makeModel } from "./model.js";
import { lastLine, make, tell } from "./nodes.js";
import { LOADING, ask, start } from "./python.js";

const HERE = new URL(".", import.meta.url);
const KEPT = "course prediction: "; // in the browser's storage, before the question

let number = 0;

/** What this browser keeps under `key`, texts alone: other pages of the host may write there. Nothing where it may not. */
function recall(key) {
  try {
    const kept = Object.entries({ ...JSON.parse(localStorage.getItem(key)) });
    return Object.fromEntries(kept.filter(([, value]) => typeof value === "string"));
  } catch {
    return {};
  }
}

const styled = addStyle();
followTheme();
document.querySelectorAll("figure.course-widget").forEach(offerWidget);
document.querySelectorAll("figure.course-prediction").forEach(offerPrediction);
document.querySelectorAll("figure.course-answer").forEach(offerAnswer);
const planners = document.querySelectorAll(".course-planner");
if (planners.length) import("./planner.js").then(({ showPlanner }) => styled.then(() => planners.forEach(showPlanner)));

/** A widget as the page has it already, or a button in its recorded picture that asks Python for it. */
function offerWidget(figure) {
  const { module, class: name } = figure.dataset;
  number += 1;
  const widget = { number, module, name, settings: JSON.parse(figure.dataset.settings ?? "{}") };
  const stored = figure.querySelector('script[type="application/json"]');
  if (stored) {
    put(figure, widget, JSON.parse(stored.textContent));
    return;
  }
  const button = make("button", { type: "button", className: "course-move" }, "Move it");
  const status = make("p", { className: "course-status", role: "status" });
  figure.append(button, status);
  button.onclick = async () => {
    tell(status, LOADING, true);
    button.disabled = true;
    try {
      const { state } = await ask(widget);
      const live = await put(figure, widget, state);
      live.querySelector("input, select, button").focus();
    } catch (error) {
      console.error(error);
      tell(status, `${lastLine(error)}. The recorded picture stays.`);
      button.disabled = false;
    }
  };
}

/** A question, with the answer that this browser keeps. */
async function offerPrediction(figure) {
  const { question, unit = "", options = "[]" } = figure.dataset;
  const asked = { question, unit, options: JSON.parse(options) };
  const key = `${KEPT}${question}`;
  const { locked = "", meaning = "" } = recall(key);
  const state = { ...asked, locked, meaning };
  number += 1;
  const widget = { number, module: "course_lib.widgets.prediction", name: "Prediction", settings: { ...state } };
  const answers = [...document.querySelectorAll("figure.course-answer")]
    .filter((each) => each.dataset.question === question);
  const remember = (answer) => {
    try {
      if (answer.locked) localStorage.setItem(key, JSON.stringify(answer));
      else localStorage.removeItem(key);
    } catch (error) {
      console.warn(error); // the browser keeps nothing for this site
    }
    answers.forEach(offerAnswer);
  };
  const keep = (model) => model.on("change:locked", async () => {
    const [locked, meaning] = [model.get("locked"), model.get("meaning")];
    remember({ locked, meaning });
    if (!locked || !answers.length) return;
    const { verdict } = await ask({ ...asked, locked, measured: answers[0].dataset.measured });
    if (model.get("locked") === locked) remember({ locked, meaning, verdict });
  });
  await put(figure, widget, state, keep);
}

/** What came out, folded until its question is answered: then beside what the reader said. */
function offerAnswer(figure) {
  const { locked, meaning, verdict } = recall(`${KEPT}${figure.dataset.question}`);
  figure.dataset.recorded ??= figure.textContent.trim();
  const came = figure.dataset.recorded.replace(" (no prediction was locked)", "");
  if (locked) {
    const read = meaning && meaning !== locked ? `, read as ${meaning}` : "";
    const judged = verdict ? `: ${verdict}` : "";
    figure.replaceChildren(make("p", {}, `You said: ${locked}${read}${judged}.`), make("p", {}, came));
  } else {
    const summary = make("summary", {}, "The answer: predict first, or look");
    figure.replaceChildren(make("details", {}, summary, make("p", {}, came)));
  }
}

/** Put a widget in the place of what a figure has recorded. Returns the element that holds it. */
async function put(figure, widget, state, keep = () => {}) {
  const [{ default: view }] = await Promise.all([import(new URL(`widgets/${SCRIPTS[widget.name]}`, HERE)), styled]);
  const el = make("div");
  const status = make("p", { className: "course-status", role: "status" });
  const live = make("div", { className: "course-live" }, el, status);
  figure.replaceChildren(live);
  colour(live);
  const model = makeModel(widget, state, (words, busy) => tell(status, words, busy),
    (waits) => { live.dataset.waits = waits; });
  live.model = model; // for who looks into the page with the browser's tools
  keep(model);
  for (const event of ["focusin", "pointerdown"]) live.addEventListener(event, start, { once: true });
  view.render({ model, el });
  performance.mark("course: widget there");
  return live;
}

function addStyle() {
  const link = make("link", { rel: "stylesheet", href: new URL("live.css", HERE).href });
  const loaded = new Promise((done) => { link.onload = done; link.onerror = done; });
  document.head.append(link);
  return loaded;
}

// Widgets take the page's own colours, where JupyterLab's stand in a notebook.

function followTheme() {
  const anew = () => document.querySelectorAll(".course-live").forEach(colour);
  const observer = new MutationObserver(anew);
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true, attributeFilter: ["class", "data-theme", "data-mode", "style"] });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
}

function colour(live) {
  const paper = paperBelow(live.parentElement);
  live.style.setProperty("--jp-layout-color0", paper);
  live.style.setProperty("--jp-content-font-color1", getComputedStyle(live.parentElement).color);
  live.dataset.jpThemeLight = String(isLight(paper));
  live.style.colorScheme = isLight(paper) ? "light" : "dark"; // what the browser draws itself: sliders, lists
}

function paperBelow(node) {
  for (let at = node; at !== null; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== "transparent" && !colour.endsWith(", 0)")) return colour;
  }
  return "white";
}

function isLight(colour) {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 127;
}
