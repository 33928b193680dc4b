// anywidget's model, for a widget whose Python is in the page's worker. A change is shown at once where the widget does
// so; what Python makes of it comes when it comes. While one question is on its way the reader's next changes are
// collected and asked together: Python answers the latest, and never lags behind.

import { lastLine } from "./nodes.js";
import { LOADING, ask, isReady } from "./python.js";

const same = (one, other) => one === other || JSON.stringify(one) === JSON.stringify(other);

/**
 * widget: { number, module, name, settings }, as session.py makes it. traits: how it stands. tell(words, busy) says
 * what the reader has to know, "" when nothing is. wait(whether) says whether an answer is on its way.
 */
export function makeModel(widget, traits, tell, wait) {
  const heard = new Map(); // "change:step" -> functions
  const messages = [];
  let changed = {}; // by the widget, not saved yet
  let saved = {}; // and not asked yet
  let asking = false;

  function assign(change) {
    const news = Object.keys(change).filter((name) => !same(traits[name], change[name]));
    Object.assign(traits, change);
    news.forEach((name) => trigger(`change:${name}`, traits[name]));
    if (news.length) trigger("change");
  }
  function trigger(event, ...words) {
    [...(heard.get(event) ?? [])].forEach((hearer) => hearer(...words));
  }

  async function askAll() {
    if (asking) return;
    wait(asking = true);
    try {
      while (messages.length || Object.keys(saved).length) {
        const question = messages.length ? { message: messages.shift() } : { changes: saved };
        if (question.changes) saved = {};
        if (!isReady()) tell(LOADING, true);
        take(await ask({ ...widget, ...question }));
      }
    } catch (error) {
      [saved, messages.length] = [{}, 0];
      console.error(error);
      tell(`${lastLine(error)}. What you see is how it was before.`);
    }
    wait(asking = false);
  }
  function take({ state, sent, refused }) {
    tell(refused ?? "");
    const newer = { ...changed, ...saved };
    assign(Object.fromEntries(Object.entries(state).filter(([name]) => !(name in newer))));
    sent.forEach((content) => trigger("msg:custom", content, []));
  }

  return {
    get: (name) => traits[name],
    set(name, value) {
      const change = typeof name === "string" ? { [name]: value } : name;
      Object.assign(changed, change);
      assign(change);
    },
    save_changes() {
      Object.assign(saved, changed);
      changed = {};
      return askAll();
    },
    send(content) {
      messages.push(content);
      return askAll();
    },
    on: (events, hearer) => events.split(" ").forEach((event) => {
      heard.set(event, (heard.get(event) ?? new Set()).add(hearer));
    }),
    off: (events, hearer) => events.split(" ").forEach((event) => heard.get(event)?.delete(hearer)),
  };
}
