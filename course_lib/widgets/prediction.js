// One question, one answer, locked: Python reads it, keeps it and compares it later. Stands on explorable.js.

export default {
  render({ model, el }) {
    const options = model.get("options");
    const unit = model.get("unit");
    const label = model.get("question");
    const id = newId();
    const fields = options.length ? radios() : typed();
    const lock = button({ label: "Lock the prediction", text: "Lock", primary: true, onClick: send });
    const anew = button({ label: "Predict anew", text: "Predict anew", onClick: () => model.send({ unlock: true }) });
    const said = element("div", { class: "detail", "aria-live": "polite" });
    el.classList.add("explorable", "prediction");
    el.replaceChildren(element("div", { class: "headline", id }, label),
      element("div", { class: "controls", ...(options.length ? { role: "radiogroup", "aria-labelledby": id } : {}) },
        ...fields.nodes, lock.node, anew.node), said);
    leaveOnEscape(el);

    function typed() {
      const input = element("input", {
        type: "text", inputmode: "decimal", size: 12, "aria-label": label, "data-lm-suppress-shortcuts": "true",
        keydown: sendOnEnter,
      });
      const choose = (text) => { input.readOnly = text !== ""; if (text) input.value = text; };
      return { nodes: [input, element("span", {}, unit)], value: () => input.value.trim(), choose, first: input };
    }
    function radios() {
      const inputs = options.map((option) => element("input", {
        type: "radio", name: id, value: option, "data-lm-suppress-shortcuts": "true",
        keydown: sendOnEnter,
      }));
      const nodes = inputs.map((input, place) => element("label", { class: "option" }, input, ` ${options[place]}`));
      const choose = (text) => {
        for (const input of inputs) {
          input.disabled = text !== "";
          if (text) input.checked = input.value === text;
        }
      };
      return { nodes, value: () => inputs.find((input) => input.checked)?.value ?? "", choose, first: inputs[0] };
    }
    function sendOnEnter(event) {
      if (event.key !== "Enter") return;
      event.preventDefault();
      event.stopPropagation();
      send();
    }
    function send() {
      const text = fields.value();
      if (model.get("locked")) return;
      if (!text) {
        said.textContent = options.length ? "Pick one first." : "Type a number first.";
        return;
      }
      said.textContent = "Python is busy, or not there yet: this is locked when it answers.";
      model.send({ lock: text });
    }
    function hear(message) {
      if (message.refused) said.textContent = `Not locked: ${message.refused}.`;
    }
    /** A focused control that is disabled would drop the focus where no key does anything: it moves on before. */
    function change() {
      const text = model.get("locked");
      const here = el.contains(document.activeElement);
      if (here && text && !focusNextCell(el)) lock.node.focus();
      show();
      if (here && !text) fields.first.focus();
    }
    function show() {
      const text = model.get("locked");
      fields.choose(text);
      lock.node.setAttribute("aria-disabled", text !== "");
      anew.node.hidden = text === "";
      const meaning = model.get("meaning");
      const read = meaning && meaning !== text ? `, read as ${meaning}` : "";
      const where = el.closest(".jp-Cell") ? "in the next cells; ••• opens their code" : "below";
      said.textContent = text ? `Locked: ${text}${read}. The answer is ${where}.` : "";
    }
    show();
    model.on("change:locked", change);
    model.on("msg:custom", hear);
    return () => { model.off("change:locked", change); model.off("msg:custom", hear); };
  },
};

/** Make JupyterLab's next cell the active one, so that Shift+Enter runs it. Returns whether there is one. */
function focusNextCell(el) {
  const own = el.closest(".jp-Cell");
  const cells = own ? [...own.parentElement.children] : []; // those that are on the page now, in no certain order
  const place = (cell) => Number(cell.dataset.windowedListIndex);
  const next = cells.find((cell) => place(cell) === place(own) + 1);
  next?.focus();
  return Boolean(next);
}
