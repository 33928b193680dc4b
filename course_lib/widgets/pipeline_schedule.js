// PipelineSchedule: schedules that are chosen are a scene like any other. By hand, the lanes take the keyboard: the cursor
// is known only here, and so is what was placed before.

const BY_HAND = "by hand";
const HAND = "draw"; // what the last two choices of the schedule do
const CHANGE = "change";

export default {
  render({ model, el }) {
    const byHand = () => model.get("order") === BY_HAND;
    const ask = (change) => { model.set(change); model.save_changes(); };
    const cursor = { rank: 0, at: 0, chunk: 0 };
    const kept = { [HAND]: null, [CHANGE]: null }; // arrow keys pass through both; neither's work may be lost
    let hand = HAND;

    const { controls, show, events } = sceneControls(model, (label, place) => {
      const fromEnd = label === "schedule" ? model.get("frames").controls[0].choices.length - place : 0;
      if (fromEnd === 1 || fromEnd === 2) startByHand(fromEnd === 1 ? HAND : CHANGE);
      return fromEnd === 1 || fromEnd === 2;
    });
    const [order, ...sliders] = controls;
    const keys = palette(["F", "B", "I", "W"], (key) => { press(key); lanes.focus(); });
    const view = shell(el, [...controls, keys]);
    const { paint } = scenesIn(view);
    const lanes = el.querySelector(".picture");
    const caret = svg("rect", { class: "here", width: 4, rx: 2 });

    function startByHand(how) {
      const shown = model.get("frames").lanes;
      if (byHand()) kept[hand] = { placed: model.get("placed"), stages: model.get("stages") };
      else kept[CHANGE] = { placed: shown.map(([, actions]) => actions), stages: shown.map(([, , stages]) => stages) };
      if (kept[how]?.placed.length !== shown.length) {
        kept[how] = { placed: shown.map(() => []), stages: shown.map((_, rank) => [rank]) };
      }
      hand = how;
      Object.assign(cursor, { rank: 0, at: kept[how].placed[0].length, chunk: 0 });
      ask({ order: BY_HAND, ...kept[how] });
    }
    const lane = (rank) => model.get("placed")[rank] ?? [];
    function change(rank, actions) {
      const all = model.get("frames").lanes.map((_, other) => (other === rank ? actions : lane(other)));
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
      else if (/^[0-9]$/.test(key)) cursor.chunk = Math.min(Number(key), model.get("frames").lanes[rank][2].length - 1);
      else if (/^[FBIW]$/i.test(key)) {
        const next = nextOf(key.toUpperCase(), cursor.chunk, here, model.get("m"));
        if (next) { cursor.at = at + 1; change(rank, here.toSpliced(at, 0, next)); }
      } else return key === "Backspace";
      redraw();
      caret.scrollIntoView({ block: "nearest", inline: "nearest" }); // the picture may be wider than its place
      return true;
    }
    const onKey = (event) => {
      if (!byHand() || event.ctrlKey || event.metaKey || event.altKey) return;
      if (press(event.key)) { event.preventDefault(); event.stopPropagation(); }
    };
    lanes.addEventListener("keydown", onKey);
    lanes.addEventListener("click", (event) => { // behind the action that was clicked, or at the end of the lane
      const { by_hand: placing, lanes: all } = model.get("frames");
      const key = event.target.dataset?.key ?? "";
      const rank = all.findIndex((_, number) => key.startsWith(`rank ${number} `));
      if (!placing || rank < 0) return;
      const place = all[rank][0].findIndex((each) => [each, `${each} weights`].includes(key));
      Object.assign(cursor, { rank, at: place < 0 ? all[rank][0].length : place + 1 });
      redraw();
    });

    function redraw() {
      const shown = model.get("frames"); // what they show counts: the order may come later, or have come before
      paint(shown.by_hand ? { ...shown, key: `${shown.key} | cursor ${cursor.rank}:${cursor.at}` } : shown);
      for (const control of sliders) control.node.hidden = shown.by_hand;
      keys.node.hidden = !shown.by_hand;
      if (!shown.by_hand) {
        caret.remove();
        return ["tabindex", "role", "aria-label"].forEach((name) => lanes.removeAttribute(name));
      }
      pointAt(shown);
      const before = lane(cursor.rank)[cursor.at - 1];
      return furnish(lanes, {
        tabindex: 0, role: "application", "data-lm-suppress-shortcuts": "true",
        "aria-label": `rank ${cursor.rank}, ${before ? `after ${before}` : "at the start"}; ${shown.keys}`,
      }, []);
    }
    /** The cursor stands before the action at its place, or behind the last one. */
    function pointAt({ marks, lanes: all }) {
      const known = new Map(marks.map((mark) => [mark.key, mark.at]));
      const actions = all[cursor.rank][0];
      const [left, top, , tall] = known.get(`rank ${cursor.rank} lane`);
      const [x, , wide] = known.get(actions[Math.min(cursor.at, actions.length - 1)]) ?? [left, top, 0];
      furnish(caret, { x: px(cursor.at < actions.length ? x - 2 : x + wide - 2), y: top - 3, height: tall + 6 }, []);
      lanes.querySelector("svg").append(caret);
    }
    const onChosen = () => {
      show();
      const labels = model.get("frames").controls[0].choices.map(({ label }) => label);
      if (byHand()) order.set(labels.length - (hand === HAND ? 1 : 2), labels);
      cursor.rank = Math.min(cursor.rank, model.get("p") - 1);
      cursor.at = Math.min(cursor.at, lane(cursor.rank).length);
    };
    onChosen();
    redraw();
    model.on(`${events} change:placed`, onChosen);
    model.on("change:frames", redraw);
    return () => { model.off(`${events} change:placed`, onChosen); model.off("change:frames", redraw); };
  },
};

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
