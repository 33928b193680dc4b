// BucketOverlap: what backward does, what the stream of all-reduces does, and what is left to wait for. Python has
// simulated all of it (bucket_overlap.py).

const LEAST_WIDTH = 760; // drawn for at least this; narrower pages see it smaller
const LANE = { left: 82, right: 16, tall: 38, backward: 30, stream: 76, axis: 124 };
const CHART = { title: 176, top: 200, foot: 318, height: 366 };

export default {
  render({ model, el }) {
    const choices = model.get("choices");
    const caps = () => withOwn(choices.caps.map(([cap]) => cap), model.get("bucket_cap_mb"));
    const told = (cap) => (choices.caps.find(([known]) => known === cap) ?? [cap, `${cap} MiB`])[1];
    const ranks = () => withOwn(choices.machines[model.get("machine")], model.get("num_ranks"));
    const ask = (change) => { model.set(change); model.save_changes(); };

    const cap = slider({
      label: "bucket size", values: caps(), value: model.get("bucket_cap_mb"), show: told,
      onInput: (chosen) => ask({ bucket_cap_mb: chosen }),
    });
    const machine = chooser({
      label: "machine", value: model.get("machine"),
      options: Object.keys(choices.machines).map((name) => ({ value: name, label: name })),
      onChange: (name) => ask({ machine: name, num_ranks: nearest(choices.machines[name], model.get("num_ranks")) }),
    });
    const num = slider({
      label: "ranks", values: ranks(), value: model.get("num_ranks"), onInput: (chosen) => ask({ num_ranks: chosen }),
    });
    const which = chooser({
      label: "model", value: model.get("model"), options: choices.models.map((name) => ({ value: name, label: name })),
      onChange: (name) => ask({ model: name }),
    });
    const onChosen = () => {
      cap.set(model.get("bucket_cap_mb"), caps());
      machine.set(model.get("machine"));
      num.set(model.get("num_ranks"), ranks());
      which.set(model.get("model"));
    };
    const view = shell(el, [cap, machine, num, which]);
    const redraw = () => drawAll(view, model.get("frames"));
    const parameters = ["bucket_cap_mb", "machine", "num_ranks", "model"];
    return follow(model, view, { parameters, onParameters: onChosen, redraw });
  },
};

function nearest(among, value) {
  return among.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best));
}

function drawAll(view, shown) {
  const width = Math.max(LEAST_WIDTH, Math.min(view.width() || LEAST_WIDTH, 1100));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${CHART.height}` });
  const stripes = `waiting-${created++}`;
  picture.append(waitingPattern(stripes), ...drawLanes(shown, width, stripes), ...drawBars(shown, width),
    svg("text", { class: "quiet small", x: LANE.left, y: CHART.height - 8 }, shown.note));
  view.say(shown.headline, shown.detail);
  view.draw(shown.key, `${shown.headline}. ${shown.detail}`, picture);
}

function drawLanes(shown, width, stripes) {
  const end = width - LANE.right;
  const scale = (end - LANE.left) / shown.end_s;
  const at = (time) => px(LANE.left + scale * time);
  const box = (kind, y, start, stop) => svg("rect", {
    class: kind, x: at(start), y, width: px(scale * (stop - start)), height: LANE.tall,
  });
  const label = (kind, y, start, stop, words) => svg("text", {
    class: `number ${kind}`, x: at((start + stop) / 2), y: y + LANE.tall / 2,
  }, words);
  const fits = (words, start, stop) => scale * (stop - start) > 7 * words.length + 4;
  const nodes = [
    svg("text", { class: "end", x: LANE.left - 10, y: LANE.backward + 24 }, "backward"),
    svg("text", { class: "end", x: LANE.left - 10, y: LANE.stream + 24 }, "all-reduce"),
  ];
  for (const [name, start, stop] of shown.blocks) {
    nodes.push(box("work", LANE.backward, start, stop));
    const short = fits(name, start, stop) ? name : name.replace("layer ", "");
    if (fits(short, start, stop)) nodes.push(label("on-work", LANE.backward, start, stop, short));
  }
  for (const [start, stop, size] of shown.buckets) {
    nodes.push(box("message", LANE.stream, start, stop));
    if (fits(size, start, stop)) nodes.push(label("on-message", LANE.stream, start, stop, size));
  }
  const over = at(shown.backward_s);
  if (shown.end_s > shown.backward_s) {
    nodes.push(svg("rect", {
      class: "waiting", x: over, y: LANE.backward, width: px(end - over), height: LANE.tall, fill: `url(#${stripes})`,
    }));
  }
  nodes.push(
    svg("line", { class: "bound", x1: over, x2: over, y1: LANE.backward - 10, y2: LANE.axis }),
    svg("text", { class: "small end", x: Math.min(over - 6, end - 120), y: LANE.backward - 8 }, shown.backward),
    svg("text", { class: "small strong alarm end", x: end, y: LANE.backward - 8 }, shown.exposed),
    svg("line", { class: "track", x1: LANE.left, x2: end, y1: LANE.axis, y2: LANE.axis }));
  for (const [time, words] of shown.ticks) {
    nodes.push(svg("line", { class: "track", x1: at(time), x2: at(time), y1: LANE.axis, y2: LANE.axis + 5 }),
      svg("text", { class: "quiet small middle", x: at(time), y: LANE.axis + 20 }, words));
  }
  return nodes;
}

/** Exposed time for every bucket size; the present one stands out. */
function drawBars(shown, width) {
  const column = (width - LANE.left - LANE.right) / shown.sweep.length;
  const most = Math.max(...shown.sweep.map(([, exposed]) => exposed)) || 1;
  const nodes = [svg("text", { x: LANE.left, y: CHART.title }, shown.chart)];
  shown.sweep.forEach(([cap, exposed, words, present], number) => {
    const tall = ((CHART.foot - CHART.top) * exposed) / most;
    const middle = px(LANE.left + column * (number + 0.5));
    const bar = { x: px(middle - column / 2 + 5), y: px(CHART.foot - tall), width: px(column - 10), height: px(tall) };
    nodes.push(
      svg("rect", { class: present ? "sent" : "trough", ...bar }),
      svg("text", { class: `small middle ${present ? "strong" : ""}`, x: middle, y: px(CHART.foot - tall - 5) }, words),
      svg("text", { class: `small middle ${present ? "strong" : "quiet"}`, x: middle, y: CHART.foot + 17 }, cap));
  });
  return nodes;
}
