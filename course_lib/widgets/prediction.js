// One question, one answer, locked: Python keeps it and compares it later. Stands on explorable.js.

export default {
  render({ model, el }) {
    const options = model.get("options");
    const unit = model.get("unit");
    const label = model.get("question");
    const id = newId();
    const fields = options.length ? radios() : typed();
    const lock = button({ label: "Lock the prediction", text: "Lock", primary: true, onClick: send });
    const said = element("div", { class: "detail", "aria-live": "polite" });
    const question = element("div", { class: "headline", id }, label);
    el.classList.add("explorable", "prediction");
    el.replaceChildren(question,
      element("div", { class: "controls", ...(options.length ? { role: "radiogroup", "aria-labelledby": id } : {}) },
        ...fields.nodes, lock.node), said);

    function typed() {
      const input = element("input", {
        type: "text", inputmode: "decimal", size: 12, "aria-label": label, "data-lm-suppress-shortcuts": "true",
        keydown: (event) => { if (event.key === "Enter") send(); },
      });
      return { nodes: [input, element("span", {}, unit)], value: () => input.value.trim(), inputs: [input] };
    }
    function radios() {
      const inputs = options.map((option) => element("input", {
        type: "radio", name: id, value: option, "aria-label": option, "data-lm-suppress-shortcuts": "true",
      }));
      const nodes = inputs.map((input, place) => element("label", { class: "option" }, input, ` ${options[place]}`));
      return { nodes, value: () => inputs.find((input) => input.checked)?.value ?? "", inputs };
    }
    /** Whether Python will take it, so that a slip is answered at once. */
    function fits(text) {
      const spelt = text.replaceAll(/[,_\s]/g, "");
      const ending = model.get("endings").filter((each) => spelt.endsWith(each)).reduce((a, b) => (b.length > a.length ? b : a), "");
      const plain = spelt.slice(0, spelt.length - ending.length);
      return options.length ? options.includes(text) : plain !== "" && Number.isFinite(Number(plain));
    }
    function send() {
      const text = fields.value();
      if (model.get("locked")) return;
      if (!fits(text)) {
        said.textContent = options.length ? "Pick one first." : "A number, please, such as 1200 or 1.2e3.";
        return;
      }
      model.set("locked", text);
      model.save_changes();
    }
    function show() {
      const text = model.get("locked");
      for (const input of fields.inputs) {
        input.disabled = text !== "";
        if (text && options.length) input.checked = input.value === text;
        else if (text) input.value = text;
      }
      lock.node.disabled = text !== "";
      if (text) said.textContent = `Locked: ${text}${options.length || !unit ? "" : ` ${/[a-z%]$/i.test(text) ? "" : unit}`}. The answer comes below.`;
    }
    show();
    model.on("change:locked", show);
    return () => model.off("change:locked", show);
  },
};
