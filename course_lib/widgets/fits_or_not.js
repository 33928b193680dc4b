// FitsOrNot: a bar for each ZeRO stage against the memory of the device. Python has computed it (fits_or_not.py).

const LEAST_WIDTH = 760; // drawn for at least this; narrower pages see it smaller
const AREA = { names: 190, end: 24, top: 30, row: 40, bar: 26 };
const NAMES = { model: "model", device: "device", num_devices: "devices", precision: "precision" };

export default {
  render({ model, el }) {
    const choices = model.get("choices");
    const ask = (name) => (value) => { model.set(name, value); model.save_changes(); };
    const drop = (name) => chooser({
      label: NAMES[name], value: model.get(name), onChange: ask(name),
      options: choices[name].map((value) => ({ value, label: value })),
    });
    const counts = () => withOwn(choices.num_devices, model.get("num_devices"));
    const controls = {
      model: drop("model"), device: drop("device"),
      num_devices: slider({
        label: NAMES.num_devices, values: counts(), value: model.get("num_devices"), onInput: ask("num_devices"),
        show: (value) => value.toLocaleString("en-US"),
      }),
      precision: drop("precision"),
    };
    const onParameters = () => {
      for (const name of ["model", "device", "precision"]) controls[name].set(model.get(name));
      controls.num_devices.set(model.get("num_devices"), counts());
    };
    const view = shell(el, Object.values(controls));
    const redraw = () => {
      const shown = model.get("frames");
      view.say(shown.headline, shown.detail);
      view.draw(shown.key, `${shown.headline}. ${shown.detail}`, drawBars(shown, view.width()));
    };
    return follow(model, view, { parameters: Object.keys(NAMES), onParameters, redraw });
  },
};

function drawBars(shown, available) {
  const width = Math.max(LEAST_WIDTH, Math.min(available || LEAST_WIDTH, 1100));
  const room = width - AREA.names - AREA.end;
  const bottom = AREA.top + shown.bars.length * AREA.row;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + 34}` });
  shown.bars.forEach((bar, number) => picture.append(drawBar(bar, AREA.top + number * AREA.row, room)));
  const limit = AREA.names + shown.limit * room;
  picture.append(
    svg("line", {
      class: "limit", x1: px(limit), x2: px(limit), y1: AREA.top - 8, y2: bottom,
      stroke: "var(--alarm)", "stroke-width": 2,
    }),
    svg("text", { class: "strong", x: px(limit), y: AREA.top - 12 }, shown.limit_text),
    drawKey(shown, bottom + 22));
  return picture;
}

function drawBar(bar, top, room) {
  const group = svg("g", {}, svg("text", { class: "end", x: AREA.names - 10, y: px(top + 18) }, bar.name));
  let left = 0;
  for (const [kind, share, colour] of bar.parts) {
    const shownShare = Math.min(share, Math.max(0, 1 - left));
    group.append(svg("rect", {
      x: px(AREA.names + left * room), y: top, width: px(shownShare * room), height: AREA.bar, fill: colour,
    }, svg("title", {}, kind)));
    left += share;
  }
  const total = `${bar.fits ? "✓" : "✗"} ${bar.total}${bar.cut ? " »" : ""}`;
  const end = AREA.names + Math.min(left, 1) * room;
  const late = left > 0.85; // no room to the right of it
  group.append(svg("text", {
    class: `strong small ${late ? "end" : ""}`, x: px(late ? end - 6 : end + 6), y: px(top + 18),
  }, total));
  return group;
}

function drawKey(shown, y) {
  const group = svg("g", {}, svg("text", { class: "quiet small end", x: AREA.names - 10, y }, "bytes on each device"));
  Object.entries(shown.colours).forEach(([kind, colour], number) => group.append(
    svg("rect", { x: AREA.names + number * 130, y: y - 10, width: 12, height: 12, fill: colour }),
    svg("text", { class: "small", x: AREA.names + number * 130 + 18, y }, kind)));
  return group;
}
