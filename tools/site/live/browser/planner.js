// The planner's command as a form. What is asked stands in the page's address, so that a link holds it; Python answers
// as it does in a terminal.

import { PLANNER } from "./course.js";
import { lastLine, make, tell } from "./nodes.js";
import { LOADING, ask, isReady } from "./python.js";

const COMMAND = "python -m course_lib.planner";
const FIRST = { model: "Llama 3 405B", gpus: "16384xH100", tokens: "16M" };
const CONFIG = "config.json"; // where Python finds the reader's own model
const options = PLANNER.groups.flatMap((group) => group.options);
const forms = options.filter(({ takes }) => takes === null); // how the answer is written; one of them at most

export function showPlanner(node) {
  const fields = new Map(options.filter(({ takes }) => takes !== null).map((option) => [option.name, field(option)]));
  const kinds = forms.map(({ name, help }) => [name, help]);
  const form = choice("answer", "Answer as", "", [["", "plans, with reasons"], ...kinds]);
  const file = make("input", { type: "file", accept: ".json", id: "planner-config" });
  const status = make("p", { className: "course-status", role: "status" });
  const line = make("code", { className: "course-command" });
  const answer = make("pre", { tabIndex: 0, role: "region", ariaLabel: "the planner's answer", hidden: true });
  let config = ""; // the text of the reader's own configuration
  let wanted = null;
  let busy = false;

  const [asked, ...groups] = PLANNER.groups.map(({ title, options: members }) => {
    const rows = members.filter(({ name }) => fields.has(name)).map(({ name }) => fields.get(name).node);
    return { title, rows };
  });
  const label = make("label", { htmlFor: file.id }, "or your own config.json");
  const own = make("p", { className: "course-field" }, label, file);
  const whole = make("form", { className: "course-form", noValidate: true },
    make("fieldset", {}, make("legend", {}, asked.title), ...asked.rows, own),
    ...groups.map(({ title, rows }) => make("details", {}, make("summary", {}, title), ...rows)),
    form.node, make("button", { className: "course-move" }, "Plan"));
  node.replaceChildren(whole, status, line, answer);
  whole.onsubmit = (event) => { event.preventDefault(); follow(); };
  file.onchange = async () => {
    if (!file.files.length) return; // the dialog was left
    config = await file.files[0].text();
    fields.get("model").input.value = CONFIG;
  };
  addEventListener("hashchange", () => { if (read()) run(); });
  if (read()) run();
  else fill(FIRST);

  /** What the fields say, by name, without what the command takes anyway. */
  function question() {
    const said = [...fields].map(([name, { input }]) => [name, input.value.trim()])
      .filter(([name, value]) => value !== "" && value !== fields.get(name).first);
    const own = fields.get("model").input.value === CONFIG && config ? [["config", config]] : [];
    return new URLSearchParams([...said, ...(form.input.value ? [["answer", form.input.value]] : []), ...own]);
  }
  function fill(values) {
    for (const [name, { input, first }] of fields) input.value = values[name] ?? first;
    form.input.value = values.answer ?? "";
    config = values.config ?? "";
    for (const details of whole.querySelectorAll("details")) {
      const inside = [...details.querySelectorAll("input, select")];
      details.open = inside.some(({ value, dataset }) => value !== dataset.first);
    }
  }
  function read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("model")) return false; // the hash of a heading, or none
    // Anybody may write a link, and readers paste the command that it becomes into a terminal.
    fill(Object.fromEntries([...asked].map(([name, value]) => [name, value.replace(/[\p{Cc}\p{Bidi_C}]/gu, " ")])));
    return true;
  }
  function follow() {
    const hash = `#${question()}`;
    if (location.hash === hash) run();
    else location.hash = hash; // which runs it
  }
  async function run() {
    const said = question();
    const given = [...said].filter(([name]) => name !== "answer" && name !== "config");
    const command = given.flatMap(([name, value]) => [`--${name}`, value]);
    if (said.get("answer")) command.push(`--${said.get("answer")}`);
    wanted = { options: command, files: config ? { [CONFIG]: config } : {} };
    if (busy) return; // this one follows
    busy = true;
    while (wanted !== null) {
      const now = wanted;
      wanted = null;
      await show(now);
    }
    busy = false;
  }
  async function show(now) {
    tell(status, isReady() ? "Every layout that fits is tried." : LOADING, true);
    line.textContent = [COMMAND, ...now.options.map(quote)].join(" ");
    answer.hidden = true;
    try {
      const { text, code, seconds } = await ask(now);
      answer.textContent = text.trimEnd();
      answer.dataset.code = code;
      answer.hidden = false;
      tell(status, code === 2 ? "The planner did not understand this:"
        : `Answered in ${seconds.toPrecision(2)} s, in your browser.`);
    } catch (error) {
      console.error(error);
      tell(status, lastLine(error));
    }
  }
}

function field({ name, help, choices, takes, default: first, required }) {
  const shown = first === null ? "" : String(first);
  if (choices !== null) {
    const empty = first === null ? [["", "as is best"]] : [];
    return { ...choice(name, name, help, [...empty, ...choices.map((each) => [each, each])], shown), first: shown };
  }
  const id = `planner-${name}`;
  const known = PLANNER.known[name];
  const input = make("input", { id, type: "text", size: required ? 24 : 12, placeholder: takes, autocomplete: "off" });
  input.spellcheck = false;
  if (known) input.setAttribute("list", `${id}-known`);
  const list = make("datalist", { id: `${id}-known` }, ...(known ?? []).map((value) => make("option", { value })));
  return { node: row(input, name, help, list), input, first: remember(input, shown) };
}

function choice(name, label, help, choices, first = "") {
  const options = choices.map(([value, text]) => make("option", { value }, text));
  const input = make("select", { id: `planner-${name}` }, ...options);
  return { node: row(input, label, help), input, first: remember(input, first) };
}

function row(input, label, help, ...rest) {
  const words = help ? [make("span", { className: "course-help", id: `${input.id}-help` }, help)] : [];
  if (help) input.setAttribute("aria-describedby", `${input.id}-help`);
  const named = make("label", { htmlFor: input.id }, label);
  return make("p", { className: "course-field" }, named, input, ...words, ...rest);
}

function remember(input, first) {
  input.value = first;
  input.dataset.first = first;
  return first;
}

const quote = (word) => (/^[\w./,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
