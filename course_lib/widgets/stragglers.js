// Stragglers: what every rank does in the first seconds, and what all the schemes achieve. Python has simulated all of
// it (stragglers.py).

const LEAST_WIDTH = 760; // drawn for at least this; narrower pages see it smaller
const ROWS = { left: 74, right: 84, top: 36, row: 36, tall: 28 };
const CHART = { left: 170, row: 25, tall: 17, words: 190 };
const KINDS = ["work", "late", "message", "waiting"]; // of frames.kinds, in its order

export default {
  render({ model, el }) {
    const choices = model.get("choices");
    const ask = (change) => { model.set(change); model.save_changes(); };
    const slacks = () => {
      const own = model.get("slack");
      const known = choices.slacks.filter((each) => model.get("scheme") !== "local" || each !== null);
      const all = [...new Set([...known, own])].filter((each) => each !== null).sort((a, b) => a - b);
      return known.includes(null) ? [...all, null] : all;
    };
    const told = (slack) => {
      if (model.get("scheme") === "local") return `H = ${slack + 1}`;
      if (model.get("scheme") === "asynchronous") return slack === null ? "no bound" : `s = ${slack}`;
      return "none";
    };
    const largest = Math.max(...choices.slacks.filter((each) => each !== null));

    const scheme = chooser({
      label: "scheme", value: model.get("scheme"), options: choices.schemes.map(([value, label]) => ({ value, label })),
      onChange: (name) => {
        const own = model.get("slack");
        ask({ scheme: name, slack: name === "local" ? own ?? largest : own });
      },
    });
    const who = chooser({
      label: "slow is", value: model.get("who"), options: choices.who.map((name) => ({ value: name, label: name })),
      onChange: (name) => ask({ who: name }),
    });
    const slowdown = slider({
      label: "slowdown", values: choices.slowdowns, value: model.get("slowdown"), show: (times) => `× ${times}`,
      onInput: (times) => ask({ slowdown: times }),
    });
    const slack = slider({
      label: "slack", values: slacks(), value: model.get("slack"), show: told,
      onInput: (chosen) => ask({ slack: chosen }),
    });
    const onChosen = () => {
      scheme.set(model.get("scheme"));
      who.set(model.get("who"));
      slowdown.set(model.get("slowdown"));
      slack.set(model.get("slack"), slacks());
      slack.node.querySelector("input").disabled = model.get("scheme") === "synchronous"; // it has none
    };
    const view = shell(el, [scheme, who, slowdown, slack]);
    const redraw = () => drawAll(view, model.get("frames"));
    onChosen();
    const parameters = ["scheme", "who", "slowdown", "slack"];
    return follow(model, view, { parameters, onParameters: onChosen, redraw });
  },
};

function drawAll(view, shown) {
  const width = Math.max(LEAST_WIDTH, Math.min(view.width() || LEAST_WIDTH, 1100));
  const axis = ROWS.top + shown.rows.length * ROWS.row;
  const height = axis + 66 + shown.compared.length * CHART.row + 26;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}` });
  const stripes = `waiting-${created++}`;
  picture.append(waitingPattern(stripes), ...drawKey(shown, stripes), ...drawRows(shown, width, axis, stripes),
    ...drawBars(shown, width, axis + 66), svg("text", { class: "quiet small", x: 2, y: height - 6 }, shown.note));
  view.say(shown.headline, shown.detail);
  view.draw(shown.key, `${shown.headline}. ${shown.detail}`, picture);
}

const filled = (kind, stripes) => ({ class: KINDS[kind], fill: KINDS[kind] === "waiting" ? `url(#${stripes})` : null });

function drawKey(shown, stripes) {
  let x = ROWS.left;
  return shown.kinds.flatMap((words, kind) => {
    const at = x;
    x += 44 + 7 * words.length;
    return [svg("rect", { ...filled(kind, stripes), x: at, y: 8, width: 16, height: 13 }),
      svg("text", { class: "small", x: at + 22, y: 19 }, words)];
  });
}

function drawRows(shown, width, axis, stripes) {
  const end = width - ROWS.right;
  const scale = (end - ROWS.left) / shown.horizon_s;
  const at = (time) => px(ROWS.left + scale * time);
  const nodes = [svg("line", { class: "track", x1: ROWS.left, x2: end, y1: axis, y2: axis })];
  shown.rows.forEach((spans, rank) => {
    const y = ROWS.top + rank * ROWS.row;
    nodes.push(
      svg("text", { class: "strong end", x: ROWS.left - 9, y: y + 19 }, `rank ${rank}`),
      svg("text", { class: "small alarm", x: end + 8, y: y + 19 }, shown.waiting[rank]),
      ...spans.map(([kind, start, stop]) => svg("rect", {
        ...filled(kind, stripes), x: at(start), y, width: px(scale * (stop - start)), height: ROWS.tall,
      })));
  });
  for (const [time, words] of shown.ticks) {
    nodes.push(svg("line", { class: "track", x1: at(time), x2: at(time), y1: axis, y2: axis + 5 }),
      svg("text", { class: "quiet small middle", x: at(time), y: axis + 20 }, words));
  }
  return nodes;
}

/** Steps a second of every scheme; the present one stands out. */
function drawBars(shown, width, top) {
  const room = width - CHART.left - CHART.words;
  const most = Math.max(...shown.compared.map(([, rate]) => rate));
  const nodes = [svg("text", { x: 2, y: top - 10 }, shown.chart)];
  shown.compared.forEach(([name, rate, words, present], number) => {
    const y = top + number * CHART.row;
    const wide = (room * rate) / most;
    nodes.push(
      svg("text", { class: `small end ${present ? "strong" : ""}`, x: CHART.left - 8, y: y + 13 }, name),
      svg("rect", { class: present ? "sent" : "trough", x: CHART.left, y, width: px(wide), height: CHART.tall }),
      svg("text", { class: `small ${present ? "strong" : ""}`, x: px(CHART.left + wide + 7), y: y + 13 }, words));
  });
  return nodes;
}
