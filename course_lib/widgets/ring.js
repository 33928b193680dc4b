// RingAllReduce: boxes on an ellipse, chunks that travel on it. Python has computed every step (ring.py).

const BOX = { head: 27, lanes: 62, foot: 21, column: 19, side: 9 };
const TOKEN = { width: 17, height: 40 };

export default {
  render({ model, el }) {
    const frames = () => model.get("frames");
    let onTheWay = null; // the step whose chunks travel now, and what moves them

    const steps = stepper(model, { draw: (step, playing) => drawStep(step, playing ? 1 : 0.5, true), move });
    const ranks = slider({
      label: "ranks", values: frames().choices, value: model.get("num_ranks"),
      onInput: (chosen) => { model.set("num_ranks", chosen); model.save_changes(); },
    });
    const onRanks = () => ranks.set(model.get("num_ranks"));
    model.on("change:num_ranks", onRanks);
    const view = shell(el, [...steps.controls, ranks]);
    const stopWatching = view.onWidth(steps.redraw);
    steps.redraw();
    return () => { steps.close(); stopWatching(); model.off("change:num_ranks", onRanks); };

    /** share: where on their links the chunks of this step are; `there`: whether the boxes have them already. */
    function drawStep(step, share, there) {
      const shown = frames();
      const text = shown.texts[step];
      const ring = layout(shown.num_ranks, view.width());
      const picture = svg("svg", { viewBox: `0 0 ${ring.width} ${ring.height}` });
      const tokens = step ? makeTokens(ring, shown, step, share) : [];
      shown.states[step].forEach((_, rank) => picture.append(drawLink(ring, rank)));
      shown.states[there ? step : step - 1].forEach((cells, rank) =>
        picture.append(drawBox(ring, rank, cells, there ? shown.messages[step] : [])));
      picture.append(...tokens.map((token) => token.node), ...tokens.map((token) => token.label),
        drawCentre(ring, text),
        svg("text", { class: "quiet small middle", x: ring.cx, y: ring.height - 6 }, shown.key));
      view.say(text.headline, text.detail);
      view.draw(there ? text.key : `${text.key} moving`, `${text.headline}. ${text.detail}`, picture);
      return tokens;
    }

    function move(step, share) {
      if (share === 0 || onTheWay?.step !== step) onTheWay = { step, tokens: drawStep(step, 0, false) };
      for (const token of onTheWay.tokens) token.to(eased(share));
    }
  },
};

/** Where everything stands, in pixels. at(rank) is on the ellipse; rank 0 at the top, then clockwise. */
function layout(n, available) {
  const width = Math.max(LEAST_WIDTH, Math.min(available || LEAST_WIDTH, 1100));
  const boxWidth = Math.max(96, n * BOX.column + 2 * BOX.side);
  const boxHeight = BOX.head + BOX.lanes + BOX.foot;
  const ry = n > 6 ? 262 : n > 4 ? 225 : 190;
  const rx = Math.min(width / 2 - boxWidth / 2 - (n > 4 ? 12 : 60), 430);
  const [cx, cy] = [width / 2, ry + boxHeight / 2 + 22];
  const at = (rank) => {
    const angle = (2 * Math.PI * rank) / n - Math.PI / 2;
    return [cx + rx * Math.cos(angle), cy + ry * Math.sin(angle)];
  };
  const ring = { n, width, height: cy + ry + boxHeight / 2 + 46, boxWidth, boxHeight, rx, ry, cx, cy, at };
  ring.free = freeStretch(ring);
  return ring;
}

/** For each link the part of the way, from 0 to 1, on which a travelling chunk covers neither box: [from, to]. */
function freeStretch(ring) {
  return Array.from({ length: ring.n }, (_, rank) => {
    const covered = (part) => [rank, rank + 1].some((other) => {
      const [x, y] = ring.at(rank + part);
      const [bx, by] = ring.at(other);
      return Math.abs(x - bx) < (ring.boxWidth + TOKEN.width) / 2 + 5
        && Math.abs(y - by) < (ring.boxHeight + TOKEN.height) / 2 + 5;
    });
    const free = Array.from({ length: 201 }, (_, number) => number / 200).filter((part) => !covered(part));
    return free.length ? [free[0], free[free.length - 1]] : [0.5, 0.5];
  });
}

function drawLink(ring, rank) {
  const inBox = (part, other) => {
    const [x, y] = ring.at(rank + part);
    const [bx, by] = ring.at(other);
    return Math.abs(x - bx) < ring.boxWidth / 2 + 3 && Math.abs(y - by) < ring.boxHeight / 2 + 3;
  };
  const points = Array.from({ length: 121 }, (_, number) => number / 120)
    .filter((part) => !inBox(part, rank) && !inBox(part, rank + 1)).map((part) => ring.at(rank + part));
  const [tip, back] = [points[points.length - 1], points[Math.max(0, points.length - 5)]];
  const angle = Math.atan2(tip[1] - back[1], tip[0] - back[0]);
  const corner = (side) => [tip[0] - 11 * Math.cos(angle + side), tip[1] - 11 * Math.sin(angle + side)].map(px);
  return svg("g", {},
    svg("polyline", { class: "track", points: points.slice(0, -2).map((point) => point.map(px)).join(" ") }),
    svg("polygon", { class: "head", points: [tip.map(px), corner(0.42), corner(-0.42)].join(" ") }));
}

function drawBox(ring, rank, cells, messages) {
  const [x, y] = ring.at(rank);
  const [left, top] = [x - ring.boxWidth / 2, y - ring.boxHeight / 2];
  const column = (ring.boxWidth - 2 * BOX.side) / ring.n;
  const arrived = messages.filter((message) => message[1] === rank).map((message) => message[2]);
  const group = svg("g", {},
    svg("rect", {
      class: "box", x: px(left), y: px(top), width: ring.boxWidth, height: ring.boxHeight, rx: 7,
      stroke: PALETTE.ranks[rank],
    }),
    svg("text", { class: "strong", x: px(left + BOX.side + 1), y: px(top + 18) }, `rank ${rank}`));
  cells.forEach((cell, chunk) => {
    const marked = arrived.includes(chunk);
    const cellLeft = left + BOX.side + chunk * column;
    group.append(
      drawCell({
        x: cellLeft + 1, y: top + BOX.head, width: column - 2, height: BOX.lanes, cell, numRanks: ring.n, adds: true,
        marked,
      }),
      svg("text", {
        class: `small middle ${marked ? "strong" : "quiet"}`, x: px(cellLeft + column / 2),
        y: px(top + BOX.head + BOX.lanes + 14),
      }, String(chunk)));
  });
  return group;
}

/** The chunks that travel in `step`, `share` of their way from rank to rank; their names stay beside the links. */
function makeTokens(ring, shown, step, share) {
  return shown.messages[step].map(([src, , chunk]) => {
    const [from, to] = ring.free[src];
    const half = { x: TOKEN.width / 2, y: TOKEN.height / 2 };
    const node = svg("g", { class: "token" }, drawCell({
      x: -half.x, y: -half.y, width: TOKEN.width, height: TOKEN.height, cell: shown.states[step - 1][src][chunk],
      numRanks: ring.n, adds: true,
    }));
    const moveTo = (where) => {
      const [x, y] = ring.at(src + from + (to - from) * where);
      node.setAttribute("transform", `translate(${px(x)} ${px(y)})`);
    };
    moveTo(share);
    return { node, label: linkName(ring, src, `chunk ${chunk}`), to: moveTo };
  });
}

/** Words beside a link, as near as they stay clear of the boxes and of what travels on it; outside if there is room. */
function linkName(ring, src, words) {
  const half = { x: 3.8 * words.length, y: 8 }; // about, and rather more than less
  const [from, to] = ring.free[src];
  const travelled = Array.from({ length: 21 }, (_, number) => ring.at(src + from + ((to - from) * number) / 20));
  const ends = [src, src + 1].map(ring.at);
  const apart = ([x, y], [ox, oy], width, height) =>
    Math.abs(x - ox) >= half.x + width / 2 + 4 || Math.abs(y - oy) >= half.y + height / 2 + 4;
  const clear = (at) => at[0] - half.x > 0 && at[0] + half.x < ring.width
    && travelled.every((chunk) => apart(at, chunk, TOKEN.width, TOKEN.height))
    && ends.every((box) => apart(at, box, ring.boxWidth, ring.boxHeight));
  const [x, y] = ring.at(src + 0.5);
  const angle = Math.atan2((y - ring.cy) / ring.ry, (x - ring.cx) / ring.rx);
  const places = [1, -1].flatMap((side) => Array.from({ length: 60 }, (_, number) =>
    [x + side * (number + 12) * Math.cos(angle), y + side * (number + 12) * Math.sin(angle)]));
  const at = places.find(clear) ?? places[30];
  return svg("text", { class: "link-name small strong middle", x: px(at[0]), y: px(at[1] + 4) }, words);
}

function drawCentre(ring, text) {
  const [x, y, bar] = [ring.cx, ring.cy, 270];
  const line = (dy, words, kind) => svg("text", { class: `middle ${kind}`, x: px(x), y: px(y + dy) }, words);
  const title = line(-52, text.phase, "strong");
  title.style.fontSize = "21px";
  return svg("g", {}, title, line(-25, text.doing, "quiet"),
    svg("rect", { class: "trough", x: px(x - bar / 2), y: px(y - 8), width: bar, height: 13, rx: 3 }),
    svg("rect", { class: "sent", x: px(x - bar / 2), y: px(y - 8), width: px(bar * text.share), height: 13, rx: 3 }),
    svg("line", { x1: px(x), x2: px(x), y1: px(y - 10), y2: px(y + 7), stroke: "var(--paper)", "stroke-width": 2 }),
    line(30, text.sent, ""), line(52, text.bound, "quiet small"));
}
