// Python in a worker: whatever it computes, the page goes on. Questions and answers are JSON; session.py answers.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const place = (name) => new URL(name, import.meta.url).href;
const loading = load();

async function load() {
  const [python, archive] = await Promise.all([loadPyodide({ indexURL: place("pyodide/") }), fetchArchive()]);
  python.unpackArchive(archive, "zip", { extractDir: "/course" });
  python.runPython("import sys; sys.path.insert(0, '/course')");
  self.python = python; // for who looks into the worker with the browser's tools
  return python.pyimport("session");
}

async function fetchArchive() {
  const found = await fetch(place("course.zip"));
  if (!found.ok) throw new Error(`course.zip: ${found.status} ${found.statusText}`);
  return found.arrayBuffer();
}

loading.then(() => postMessage({ ready: true }), (error) => postMessage({ broken: String(error) }));

self.onmessage = async ({ data: { number, question } }) => {
  const session = await loading.catch(() => null);
  if (session === null) return; // the page knows: it was told that Python is broken
  try {
    postMessage({ number, answer: session.ask(question) });
  } catch (error) {
    postMessage({ number, failed: String(error) });
  }
};
