// PipelineSchedule: what every rank does and when, what it holds, and how the other schedules compare. Python has
// simulated all of it (pipeline_schedule.py). By hand, the lanes take the keyboard: the cursor is known only here.

const LEAST_WIDTH = 760; // drawn for at least this; narrower pages see it smaller
const LANES = { left: 62, right: 96, top: 8, least: 25, most: 34, gap: 3, room: 160 };
const BARS = { left: 130, row: 19, tall: 13, words: 150 };
const RUNS = 0;
const WRONG = 2;
const HAND = "hand"; // values of the chooser that are no schedule of choices.orders
const CHANGE = "change";

export default {
  render({ model, el }) {
    const choices = model.get("choices");
    const byHand = () => model.get("order") === choices.by_hand;
    const ask = (change) => { model.set(change); model.save_changes(); };
    const cursor = { rank: 0, at: 0, chunk: 0 };
    const kept = { [HAND]: null, [CHANGE]: null }; // arrow keys pass through both; neither's work may be lost
    let hand = HAND;

    const chosen = () => {
      const v = model.get("order") === "interleaved 1F1B" ? model.get("v") : 0;
      const place = choices.orders.findIndex(([order, chunks]) => order === model.get("order") && chunks === v);
      return byHand() ? hand : String(place);
    };
    const order = chooser({
      label: "schedule", value: chosen(),
      options: [...choices.orders.map(([, , label], place) => ({ value: String(place), label })),
        { value: CHANGE, label: "change it by hand" }, { value: HAND, label: "draw your own" }],
      onChange: (value) => {
        if (value === HAND || value === CHANGE) return startByHand(value);
        const [name, v] = choices.orders[Number(value)];
        return ask(v ? { order: name, v } : { order: name });
      },
    });
    const ranks = slider({
      label: "ranks", values: withOwn(choices.ranks, model.get("p")), value: model.get("p"),
      onInput: (p) => ask(model.get("slow") >= p ? { p, slow: null } : { p }),
    });
    const microbatches = slider({
      label: "micro-batches", values: withOwn(choices.microbatches, model.get("m")), value: model.get("m"),
      onInput: (m) => ask({ m }),
    });
    const slow = slider({
      label: "slow rank", values: slowRanks(model), value: model.get("slow") ?? -1,
      show: (rank) => (rank < 0 ? "none" : `${rank}, twice as long`),
      onInput: (rank) => ask({ slow: rank < 0 ? null : rank }),
    });
    const keys = palette(["F", "B", "I", "W"], (key) => { press(key); lanes.focus(); });
    const view = shell(el, [order, ranks, microbatches, slow, keys]);
    const lanes = el.querySelector(".picture");

    function startByHand(how) {
      const { rows, stages } = model.get("frames");
      if (byHand()) kept[hand] = { placed: model.get("placed"), stages: model.get("stages") };
      else kept[CHANGE] = { placed: rows.map((row) => row.map((box) => textOf(box[2], box[3], box[4]))), stages };
      if (kept[how]?.placed.length !== rows.length) {
        kept[how] = { placed: rows.map(() => []), stages: rows.map((_, rank) => [rank]) };
      }
      hand = how;
      Object.assign(cursor, { rank: 0, at: kept[how].placed[0].length, chunk: 0 });
      ask({ order: choices.by_hand, ...kept[how] });
    }
    const lane = (rank) => model.get("placed")[rank] ?? [];
    function change(rank, actions) {
      const all = model.get("frames").rows.map((_, other) => (other === rank ? actions : lane(other)));
      ask({ placed: all });
    }
    /** What a key does; false where it is none of ours. */
    function press(key) {
      const { rank, at } = cursor;
      const here = lane(rank);
      const last = model.get("p") - 1;
      if (key === "ArrowUp" || key === "ArrowDown") {
        cursor.rank = Math.min(last, Math.max(0, rank + (key === "ArrowDown" ? 1 : -1)));
        cursor.at = at === here.length ? lane(cursor.rank).length : Math.min(at, lane(cursor.rank).length);
      } else if (key === "ArrowLeft") cursor.at = Math.max(0, at - 1);
      else if (key === "ArrowRight") cursor.at = Math.min(here.length, at + 1);
      else if (key === "Home") cursor.at = 0;
      else if (key === "End") cursor.at = here.length;
      else if (key === "Backspace" && at > 0) { cursor.at = at - 1; change(rank, here.toSpliced(at - 1, 1)); }
      else if (key === "Delete") { cursor.at = 0; change(rank, []); }
      else if (/^[0-9]$/.test(key)) cursor.chunk = Math.min(Number(key), model.get("frames").num_chunks - 1);
      else if (/^[FBIW]$/i.test(key)) {
        const next = nextOf(key.toUpperCase(), cursor.chunk, here, model.get("m"));
        if (next) { cursor.at = at + 1; change(rank, here.toSpliced(at, 0, next)); }
      } else return key === "Backspace";
      redraw();
      return true;
    }
    const onKey = (event) => {
      if (!byHand() || event.ctrlKey || event.metaKey || event.altKey) return;
      if (press(event.key)) { event.preventDefault(); event.stopPropagation(); }
    };
    lanes.addEventListener("keydown", onKey);
    lanes.addEventListener("click", (event) => { // behind the action that was clicked, or at the end of the lane
      const place = event.target.dataset?.place;
      if (!model.get("frames").by_hand || !place) return;
      [cursor.rank, cursor.at] = place.split(":").map(Number);
      redraw();
    });

    function redraw() {
      const shown = model.get("frames"); // what they show counts: the order may come later, or have come before
      drawAll(view, shown, shown.by_hand ? cursor : null);
      for (const control of [ranks, microbatches, slow]) control.node.hidden = shown.by_hand;
      keys.node.hidden = !shown.by_hand;
      if (!shown.by_hand) return ["tabindex", "role", "aria-label"].forEach((name) => lanes.removeAttribute(name));
      const before = lane(cursor.rank)[cursor.at - 1];
      return furnish(lanes, {
        tabindex: 0, role: "application", "data-lm-suppress-shortcuts": "true",
        "aria-label": `rank ${cursor.rank}, ${before ? `after ${before}` : "at the start"}; ${shown.note}`,
      }, []);
    }
    const onChosen = () => {
      order.set(chosen());
      ranks.set(model.get("p"), withOwn(choices.ranks, model.get("p")));
      microbatches.set(model.get("m"), withOwn(choices.microbatches, model.get("m")));
      slow.set(model.get("slow") ?? -1, slowRanks(model));
      cursor.rank = Math.min(cursor.rank, model.get("p") - 1);
      cursor.at = Math.min(cursor.at, lane(cursor.rank).length);
    };
    const parameters = ["order", "p", "m", "v", "slow", "placed"];
    return follow(model, view, { parameters, onParameters: onChosen, redraw });
  },
};

const slowRanks = (model) => withOwn([-1, ...Array(model.get("p")).keys()], model.get("slow") ?? -1);
const textOf = (kind, microbatch, chunk) => `${kind}${microbatch}${chunk ? `.${chunk}` : ""}`;

/** The first micro-batch that has no such action on the lane yet. */
function nextOf(kind, chunk, placed, m) {
  for (let i = 0; i < m; i += 1) {
    if (!placed.includes(textOf(kind, i, chunk))) return textOf(kind, i, chunk);
  }
  return null;
}

/** Buttons for those who have no keyboard at hand. */
function palette(kinds, onPress) {
  const names = { F: "forward", B: "backward", I: "backward for the input", W: "backward for the weights" };
  const buttons = kinds.map((kind) => (
    button({ label: `place ${names[kind]}`, text: kind, onClick: () => onPress(kind) })));
  buttons.push(button({ label: "take away", text: "⌫", onClick: () => onPress("Backspace") }));
  return { node: element("div", { class: "control palette" }, ...buttons.map((each) => each.node)) };
}

function drawAll(view, shown, cursor) {
  const width = Math.max(LEAST_WIDTH, Math.min(view.width() || LEAST_WIDTH, 1100));
  const tall = Math.max(LANES.least, Math.min(LANES.most, LANES.room / shown.rows.length));
  const axis = LANES.top + tall * shown.rows.length + 4;
  const bars = axis + 114;
  const foot = bars + BARS.row * shown.compared.length + 8;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${foot}` });
  const stripes = `waiting-${created++}`;
  picture.append(waitingPattern(stripes), ...drawLanes(shown, width, tall, stripes, cursor),
    ...drawAxis(shown, width, axis), ...drawLegend(shown, axis + 62), ...drawBars(shown, width, bars));
  view.say(shown.headline, shown.detail);
  view.draw(cursor ? `${shown.key} | cursor ${cursor.rank}:${cursor.at}` : shown.key,
    `${shown.headline}. ${shown.detail}`, picture);
}

const scaleOf = (shown, width) => (width - LANES.left - LANES.right) / shown.end;

function drawLanes(shown, width, tall, stripes, cursor) {
  const scale = scaleOf(shown, width);
  const at = (time) => px(LANES.left + scale * time);
  const nodes = [];
  shown.rows.forEach((row, rank) => {
    const top = LANES.top + rank * tall;
    const frame = { y: px(top), height: px(tall - LANES.gap) };
    const [, held] = shown.in_flight[rank];
    nodes.push(
      svg("text", { class: "end lane-name", x: LANES.left - 8, y: px(top + tall / 2 + 3) }, `rank ${rank}`),
      svg("rect", { class: "idle", x: LANES.left, width: px(scale * shown.makespan), ...frame,
        fill: `url(#${stripes})` }),
      svg("rect", { class: "lane", x: LANES.left, width: px(width - LANES.left - LANES.right), ...frame,
        "data-place": `${rank}:${row.length}` }),
      svg("text", { class: "small quiet", x: width - LANES.right + 8, y: px(top + tall / 2 + 3) }, held));
    row.forEach((box, number) => nodes.push(
      ...drawBox(shown, box, at, scale, top, tall - LANES.gap, `${rank}:${number + 1}`)));
    if (cursor && cursor.rank === rank) {
      const place = Math.min(cursor.at, row.length);
      const x = at(place < row.length ? row[place][0] : row.length ? row[place - 1][1] : 0);
      nodes.push(svg("rect", { class: "here", x: x - 2, width: 4, y: px(top - 3), height: px(tall + 3), rx: 2 }));
    }
  });
  return nodes;
}

function drawBox(shown, [start, end, kind, microbatch, chunk, becomes], at, scale, top, tall, place) {
  const wide = scale * (end - start);
  const frame = { x: at(start), y: px(top), width: px(wide), height: px(tall), "data-place": place };
  const runs = becomes === RUNS;
  const colour = shown.colours[kind][chunk];
  const nodes = [svg("rect", {
    class: runs ? "action" : becomes === WRONG ? "stuck wrong" : "stuck", ...frame, ...(runs ? { fill: colour } : {}),
  })];
  if (kind === "B" && runs) { // a whole backward pass makes the weight gradients, too
    nodes.push(svg("rect", { class: "action", ...frame, y: px(top + 0.82 * tall), height: px(0.18 * tall),
      fill: shown.colours.W[chunk] }));
  }
  const words = runs ? String(microbatch) : textOf(kind, microbatch, chunk);
  if (wide > 7.4 * words.length + 1) {
    const style = runs ? `fill: ${shown.inks[kind][chunk]}` : undefined;
    nodes.push(svg("text", { class: "number", x: at((start + end) / 2),
      y: px(top + tall * (kind === "B" && runs ? 0.42 : 0.5)), style }, words));
  }
  return nodes;
}

function drawAxis(shown, width, y) {
  const right = width - LANES.right;
  const nodes = [svg("line", { class: "track", x1: LANES.left, x2: right, y1: y, y2: y })];
  for (const [time, words] of shown.ticks) {
    const x = px(LANES.left + scaleOf(shown, width) * time);
    nodes.push(svg("line", { class: "track", x1: x, x2: x, y1: y, y2: y + 5 }),
      svg("text", { class: "quiet small middle", x, y: y + 19 }, words));
  }
  return [...nodes, svg("text", { class: "quiet small end", x: right, y: y + 36 }, shown.axis)];
}

function drawLegend(shown, y) {
  const told = { F: "forward F", B: "whole backward B", I: "backward for input I", W: "backward for weights W" };
  const used = Object.keys(told).filter((kind) => shown.rows.some((row) => row.some((box) => box[2] === kind)));
  const nodes = [];
  let x = LANES.left;
  for (const kind of used) {
    nodes.push(svg("rect", { x, y: y - 10, width: 12, height: 12, rx: 2, fill: shown.colours[kind][0] }));
    if (kind === "B") nodes.push(svg("rect", { x, y: y - 1, width: 12, height: 3, fill: shown.colours.W[0] }));
    nodes.push(svg("text", { class: "small", x: x + 17, y }, told[kind]));
    x += 34 + 6.4 * told[kind].length;
  }
  const lighter = shown.num_chunks > 1 ? "lighter: later chunk; " : "";
  return [...nodes, svg("text", { class: "quiet small", x: LANES.left, y: y + 20 }, lighter + shown.note)];
}

/** The idle share of every schedule; the present one stands out. */
function drawBars(shown, width, top) {
  const most = Math.max(...shown.compared.map(([, idle]) => idle)) || 1;
  const scale = (width - BARS.left - BARS.words - 16) / most;
  const nodes = [svg("text", { x: LANES.left, y: top - 6 }, shown.chart)];
  shown.compared.forEach(([name, idle, words, present], number) => {
    const y = top + 4 + number * BARS.row;
    nodes.push(
      svg("text", { class: `small end ${present ? "strong" : ""}`, x: BARS.left - 8, y: y + 11 }, name),
      svg("rect", { class: present ? "sent" : "received", x: BARS.left, y, height: BARS.tall,
        width: px(scale * idle) }),
      svg("text", { class: `small ${present ? "strong" : "quiet"}`, x: px(BARS.left + scale * idle + 6), y: y + 11 },
        words));
  });
  return nodes;
}
