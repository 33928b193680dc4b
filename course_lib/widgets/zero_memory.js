// ZeroMemory: one device's bytes by kind, above what GPUs have. Python has computed it (zero_memory.py).

const LEAST_WIDTH = 760; // drawn for at least this; narrower pages see it smaller
const AREA = { names: 170, end: 12, top: 12, row: 34, bar: 22 };
const NAMES = { model: "model", num_devices: "devices", stage: "stage", recipe: "recipe" };

export default {
  render({ model, el }) {
    const choices = model.get("choices");
    const ask = (name) => (value) => { model.set(name, value); model.save_changes(); };
    const drop = (name, options, value, onChange) => chooser({ label: NAMES[name], options, value, onChange });
    const plain = (name) => drop(name, choices[name].map((value) => ({ value, label: value })), model.get(name), ask(name));
    const counts = () => withOwn(choices.num_devices, model.get("num_devices"));
    const stages = choices.stage.map((label, stage) => ({ value: String(stage), label }));
    const controls = {
      model: plain("model"),
      num_devices: slider({
        label: NAMES.num_devices, values: counts(), value: model.get("num_devices"), onInput: ask("num_devices"),
        show: (value) => value.toLocaleString("en-US"),
      }),
      stage: drop("stage", stages, String(model.get("stage")), (value) => ask("stage")(Number(value))),
      recipe: plain("recipe"),
    };
    const onParameters = () => {
      for (const name of ["model", "recipe"]) controls[name].set(model.get(name));
      controls.stage.set(String(model.get("stage")));
      controls.num_devices.set(model.get("num_devices"), counts());
    };
    const view = shell(el, Object.values(controls));
    const redraw = () => {
      const shown = model.get("frames");
      view.say(shown.headline, shown.detail);
      view.draw(shown.key, `${shown.headline}. ${shown.detail}`, drawNeed(shown, view.width()));
    };
    return follow(model, view, { parameters: Object.keys(NAMES), onParameters, redraw });
  },
};

function drawNeed(shown, available) {
  const width = Math.max(LEAST_WIDTH, Math.min(available || LEAST_WIDTH, 1100));
  const room = width - AREA.names - AREA.end;
  const rowTop = (row) => AREA.top + row * AREA.row;
  const [host, colour, hostText] = shown.host;
  const first = host > 0 ? 2 : 1; // the row of the smallest GPU
  const bottom = rowTop(first + shown.rooms.length);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + 28}` });
  const name = (row, text) => picture.append(
    svg("text", { class: "end", x: AREA.names - 10, y: rowTop(row) + 16 }, text));
  name(0, "each device holds");
  let left = 0;
  for (const [kind, share, colour] of shown.parts) {
    const part = Math.min(share, Math.max(0, 1 - left));
    picture.append(svg("rect", {
      x: px(AREA.names + left * room), y: rowTop(0), width: px(part * room), height: AREA.bar, fill: colour,
    }, svg("title", {}, kind)));
    left += share;
  }
  picture.append(amountAt(Math.min(left, 1), rowTop(0), room, `${shown.total}${left > 1 ? " »" : ""}`, left > 0.85));
  if (host > 0) {
    name(1, "its host holds");
    picture.append(
      svg("rect", {
        x: AREA.names, y: rowTop(1) + 4, width: px(Math.min(host, 1) * room), height: AREA.bar - 8,
        fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-dasharray": "5 3",
      }),
      amountAt(Math.min(host, 1), rowTop(1), room, `${hostText}${host > 1 ? " »" : ""}`, host > 0.75));
  }
  if (left <= 1) {
    const end = px(AREA.names + left * room);
    picture.append(svg("line", {
      x1: end, x2: end, y1: AREA.top, y2: bottom - 6, stroke: "var(--alarm)", "stroke-width": 1.6,
    }));
  }
  shown.rooms.forEach((gpu, number) => {
    const top = rowTop(first + number);
    name(first + number, gpu.label);
    picture.append(
      svg("rect", { class: "trough", x: AREA.names, y: top + 2, width: px(gpu.there * room), height: AREA.bar - 4,
        opacity: 0.5 }),
      svg("rect", { class: "trough", x: AREA.names, y: top + 2, width: px(gpu.usable * room), height: AREA.bar - 4 }),
      svg("text", {
        class: gpu.fits ? "strong halo" : "alarm halo", x: px(AREA.names + gpu.there * room + 8), y: top + 16,
      }, gpu.verdict));
  });
  picture.append(drawKey(shown, bottom + 18));
  return picture;
}

function amountAt(share, top, room, text, late) {
  const x = AREA.names + share * room;
  return svg("text", { class: `strong small ${late ? "end" : ""}`, x: px(late ? x - 6 : x + 6), y: top + 16 }, text);
}

function drawKey(shown, y) {
  const group = svg("g", {}, svg("text", { class: "quiet small end", x: AREA.names - 10, y }, "bytes by kind"));
  Object.entries(shown.colours).slice(0, 3).forEach(([kind, colour], number) => group.append(
    svg("rect", { x: AREA.names + number * 130, y: y - 10, width: 12, height: 12, fill: colour }),
    svg("text", { class: "small", x: AREA.names + number * 130 + 18, y }, kind)));
  group.append(svg("text", { class: "quiet small", x: AREA.names + 400, y }, "the pale end of a GPU stays free"));
  return group;
}
