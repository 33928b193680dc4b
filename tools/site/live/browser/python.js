// The page's side of the worker: one for all widgets of a page, started when a reader first moves something.

import { MEGABYTES } from "./course.js";

export const LOADING = `Python is loading into your browser, once: ${MEGABYTES} MB, or a good third of that where the `
  + "server sends it packed.";

let worker = null;
let ready = false;
let number = 0;
const waiting = new Map(); // the number of a question -> { keep, fail }

/** Start to load, ahead of the first question. */
export function start() {
  if (worker !== null) return;
  performance.mark("course: Python wanted");
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onerror = (event) => stop(event.message || "its script did not load");
  worker.onmessage = ({ data }) => {
    if (data.ready) {
      ready = true;
      performance.mark("course: Python there");
    } else if (data.broken) stop(data.broken);
    else settle(data);
  };
}

export const isReady = () => ready;

/** The answer to `question`, which is plain data. Throws where there is none; the next question tries anew. */
export function ask(question) {
  start();
  number += 1;
  worker.postMessage({ number, question: JSON.stringify(question) });
  return new Promise((keep, fail) => waiting.set(number, { keep, fail }));
}

function settle({ number, answer, failed }) {
  const { keep, fail } = waiting.get(number);
  waiting.delete(number);
  if (failed === undefined) keep(JSON.parse(answer));
  else fail(new Error(failed));
}

function stop(why) {
  worker.terminate();
  worker = null;
  ready = false;
  const failed = [...waiting.values()];
  waiting.clear();
  failed.forEach(({ fail }) => fail(new Error(`Python did not load: ${why}`)));
}
