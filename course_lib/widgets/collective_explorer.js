// CollectiveExplorer: a grid of ranks and chunks with this step's messages on its left and everybody's bytes on its
// right. Python has computed every step (collective_explorer.py).

const AREA = { arcs: 112, names: 86, bars: 200, top: 72, gap: 16 };

export default {
  render({ model, el }) {
    const choices = model.get("choices");
    const labels = choices.map(({ label }) => label);
    const chosen = () => choices.find(({ op, algorithm }) =>
      op === model.get("op") && algorithm === model.get("algorithm"));
    let onTheWay = null;

    const steps = stepper(model, { draw: (step) => drawStep(step, 1), move });
    const which = chooser({
      label: "collective", labels, value: choices.indexOf(chosen()),
      onChange: (place) => choose(choices[place], model.get("num_ranks")),
    });
    const ranks = slider({
      label: "ranks", values: chosen().ranks, value: model.get("num_ranks"),
      onInput: (num) => choose(chosen(), num),
    });
    const onChosen = () => { which.set(choices.indexOf(chosen()), labels); ranks.set(model.get("num_ranks"), chosen().ranks); };
    const parameters = "change:op change:algorithm change:num_ranks";
    const [play, , stepSlider] = steps.controls; // at most four: the step slider also leads back to the start
    const view = shell(el, [which, ranks, play, stepSlider]);
    const stopWatching = view.onWidth(steps.redraw);
    model.on("change:frames", onChosen);
    model.on(parameters, onChosen);
    steps.redraw();
    return () => {
      steps.close();
      stopWatching();
      model.off("change:frames", onChosen);
      model.off(parameters, onChosen);
    };

    /** One message for all of it, so that Python never sees a pair that does not fit. */
    function choose(choice, num) {
      const nearer = (best, other) => (Math.abs(other - num) < Math.abs(best - num) ? other : best);
      const nearest = choice.ranks.reduce(nearer);
      model.set({ op: choice.op, algorithm: choice.algorithm, num_ranks: nearest });
      model.save_changes();
    }

    function drawStep(step, share) {
      const shown = model.get("frames");
      const text = shown.texts[step];
      const there = share === 1;
      const grid = layout(shown, view.width());
      const picture = svg("svg", { viewBox: `0 0 ${grid.width} ${grid.height}` });
      const arcs = shown.messages[step].map((message) => drawArc(grid, message));
      picture.append(svg("text", { x: 2, y: 18 }, text.step), ...drawNames(grid, shown),
        ...drawCells(grid, shown, there ? step : step - 1, there), ...arcs.map((arc) => arc.node),
        ...drawBars(grid, shown, there ? step : step - 1),
        svg("text", { class: "quiet small", x: 2, y: grid.height - 6 }, shown.key));
      view.say(text.headline, text.detail);
      view.draw(there ? text.key : `${text.key} moving`, `${text.headline}. ${text.detail}. ${text.step}`, picture);
      return arcs;
    }

    function move(step, share) {
      if (share === 0 || onTheWay?.step !== step) onTheWay = { step, arcs: drawStep(step, 0) };
      for (const arc of onTheWay.arcs) arc.to(eased(share));
    }
  },
};

/** Where everything stands, in pixels. left(place), top(rank): the corner of a cell. */
function layout(shown, available) {
  const width = Math.max(LEAST_WIDTH, Math.min(available || LEAST_WIDTH, 1100));
  const first = AREA.arcs + AREA.names;
  const num = shown.columns.length;
  const gap = num > shown.num_inputs ? AREA.gap : 0; // between the input and the output of an all-to-all
  const column = Math.min(74, (width - first - AREA.bars - 24 - gap) / num);
  const row = shown.adds ? Math.max(40, 4 + 5.5 * shown.num_ranks) : 36;
  const left = (place) => first + place * column + (place >= shown.num_inputs ? gap : 0);
  const top = (rank) => AREA.top + rank * row;
  const bars = first + num * column + gap + 24;
  const bottom = top(shown.num_ranks);
  return { width, height: bottom + 76, column, row, left, top, bottom, gap, bars, room: width - bars - 62 };
}

function drawNames(grid, shown) {
  const middle = (rank) => grid.top(rank) + grid.row / 2;
  const names = shown.states[0].flatMap((_, rank) => [
    svg("rect", { x: AREA.arcs + 9, y: px(middle(rank) - 6), width: 12, height: 12, rx: 2, fill: PALETTE.ranks[rank] }),
    svg("text", { class: "strong end", x: AREA.arcs + AREA.names - 8, y: px(middle(rank) + 4.5) }, `rank ${rank}`),
  ]);
  const wide = grid.column > 52;
  shown.columns.forEach((column, place) => names.push(svg("text", {
    class: "quiet small middle", x: px(grid.left(place) + grid.column / 2), y: AREA.top - 7,
  }, wide ? column : column.split(" ").pop())));
  const one = wide ? [] : [[0, "chunk"]];
  const parts = grid.gap ? [[0, "to send to rank"], [shown.num_inputs, "received from rank"]] : one;
  for (const [place, words] of parts) {
    const centre = grid.left(place) + (grid.column * shown.num_inputs) / 2;
    names.push(svg("text", { class: "quiet small middle", x: px(centre), y: AREA.top - 25 }, words));
  }
  return names;
}

function drawCells(grid, shown, step, there) {
  const messages = there ? shown.messages[step] : [];
  const arrived = new Set(messages.flatMap(([, dst, into]) => into.map((place) => `${dst} ${place}`)));
  return shown.states[step].flatMap((cells, rank) => cells.map((cell, place) => drawCell({
    x: grid.left(place) + 2, y: grid.top(rank) + 3, width: grid.column - 4, height: grid.row - 6, cell,
    numRanks: shown.num_ranks, adds: shown.adds, marked: arrived.has(`${rank} ${place}`),
  })));
}

/** From row to row at the left of the names; who is further away bends further out. The dot moves while it plays. */
function drawArc(grid, [src, dst]) {
  const at = AREA.arcs + 2;
  const [from, to] = [grid.top(src) + grid.row / 2 - 5, grid.top(dst) + grid.row / 2 + 5];
  const out = at - 1.3 * (at - 8) * Math.min(1, 0.35 + (Math.abs(src - dst) - 1) / 8);
  const path = svg("path", {
    class: "arrow", d: `M ${at} ${px(from)} C ${px(out)} ${px(from)} ${px(out)} ${px(to)} ${at - 7} ${px(to)}`,
  });
  const dot = svg("circle", {
    r: 6, fill: PALETTE.ranks[src], visibility: "hidden", stroke: "var(--paper)", "stroke-width": 1.5,
  });
  const points = `${at},${px(to)} ${at - 9},${px(to - 4.5)} ${at - 9},${px(to + 4.5)}`;
  const head = svg("polygon", { class: "head", points });
  const moveTo = (share) => {
    const point = path.getPointAtLength(share * path.getTotalLength());
    dot.setAttribute("visibility", "visible");
    dot.setAttribute("cx", px(point.x));
    dot.setAttribute("cy", px(point.y));
  };
  return { node: svg("g", {}, path, head, dot), to: moveTo };
}

/** Two bars a rank, what it has sent and received so far, against what the busiest rank has to move at least. */
function drawBars(grid, shown, step) {
  const scale = grid.room / Math.max(shown.busiest, shown.bound);
  const [sent, received] = shown.amounts[step];
  const nodes = [
    svg("rect", { class: "sent", x: grid.bars, y: AREA.top - 17, width: 11, height: 11 }),
    svg("text", { class: "small", x: grid.bars + 16, y: AREA.top - 7 }, "sent"),
    svg("rect", { class: "received", x: grid.bars + 56, y: AREA.top - 17, width: 11, height: 11 }),
    svg("text", { class: "small", x: grid.bars + 72, y: AREA.top - 7 }, "received"),
  ];
  const bar = (rank, amount, words, kind, offset) => {
    const over = amount > shown.bound + 1e-9;
    const [y, tall] = [grid.top(rank) + offset * grid.row, 0.34 * grid.row];
    nodes.push(
      svg("rect", {
        class: over ? `${kind} over` : kind, x: grid.bars, y: px(y), width: px(amount * scale), height: px(tall),
      }),
      svg("text", {
        class: over ? "small strong" : "small", x: px(grid.bars + amount * scale + 5), y: px(y + tall / 2 + 4),
      }, words));
  };
  shown.sent[step].forEach((amount, rank) => bar(rank, amount, sent[rank], "sent", 0.14));
  shown.received[step].forEach((amount, rank) => bar(rank, amount, received[rank], "received", 0.52));
  const bound = px(grid.bars + shown.bound * scale);
  nodes.push(
    svg("line", { class: "bound", x1: bound, x2: bound, y1: AREA.top - 2, y2: px(grid.bottom + 4) }),
    svg("text", { class: "small middle", x: bound, y: px(grid.bottom + 18) }, shown.bound_text),
    svg("text", { class: "quiet small", x: grid.bars, y: px(grid.bottom + 37) }, "of the buffer, by each rank so far"));
  return nodes;
}
