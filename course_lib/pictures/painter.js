// Paint a scene (scene.py) into one SVG. A mark that stays moves to its new place; readers who want no motion see it
// there at once. Colours come from the style sheet that roles.py writes. Stands on explorable.js.

const MOVE_MS = 140;
const NUMBERS = { rect: ["x", "y", "width", "height"], line: ["x1", "y1", "x2", "y2"], text: ["x", "y"] };

/**
 * Scene number `step` of a film, as film() in scene.py has made it. waiting: the step of which the marks are that wait
 * until what is carried in this step has arrived.
 */
function sceneOf(film, step, waiting = step) {
  const marks = film.marks.flatMap(([kind, key, role, at, waits, rest, ...changes]) => {
    const look = { kind, key, role, at, ...rest };
    const shown = changes.filter(([steps]) => (steps >> (waits ? waiting : step)) & 1);
    return changes.length ? shown.map(([, change]) => ({ ...look, ...change })) : [look];
  });
  const { width, height, scenes } = film;
  return { width, height, ...scenes[step], marks };
}

/** Returns { sheet, paint, carry }: an <svg>, what makes it show a scene, and what carries marks along their curves. */
function scenePainter() {
  const own = newId(); // a pattern's name counts in the whole page
  const roles = Object.values(PALETTE.roles);
  const defs = svg("defs", {}, ...roles.filter(({ stripes }) => stripes).map((role) => stripesOf(role, `${own}-${role.class}`)),
    ...roles.filter(({ head }) => head).map((role) => headOf(role, `${own}-${role.class}`)));
  const sheet = svg("svg", {}, defs);
  const drawn = new Map(); // key -> { mark, node, at }: where it stands now
  let request = null;

  /** share: how far what is carried has come on its way, 0 to 1. */
  function paint(scene, share = 0.5) {
    cancelAnimationFrame(request);
    const keys = new Map(scene.marks.map((mark) => [mark.key, mark]));
    const still = prefersReducedMotion() || drawn.size === 0;
    for (const [key, { mark, node }] of drawn) {
      if (keys.get(key)?.kind === mark.kind) continue;
      node.remove();
      drawn.delete(key);
    }
    sheet.setAttribute("viewBox", `0 0 ${scene.width} ${scene.height}`);
    const moving = [];
    let next = defs.nextSibling; // what stands where the next mark belongs
    for (const mark of scene.marks) {
      const known = drawn.get(mark.key) ?? { mark: null, node: nodeOf(mark), at: mark.at };
      drawn.set(mark.key, known);
      dress(known.node, mark, known.mark);
      if (known.node === next) next = next.nextSibling;
      else sheet.insertBefore(known.node, next);
      const stays = known.mark !== null && known.at.every((number, index) => number === mark.at[index]);
      if (known.mark === null || ((still || mark.along) && !stays)) place(known, mark.at);
      else if (!stays) moving.push({ known, from: known.at });
      known.mark = mark;
    }
    if (share !== 0.5) carry(share);
    if (moving.length) move(moving);
    else delete sheet.dataset.moving;
  }

  function move(moving) {
    sheet.dataset.moving = "true";
    const began = performance.now() - 1000 / 60; // the first picture is on its way already
    const turn = () => {
      const share = Math.min(1, (performance.now() - began) / MOVE_MS);
      const gone = 1 - (1 - share) ** 3; // fast, then slow
      for (const { known, from } of moving) {
        const to = known.mark.at;
        place(known, share === 1 ? to : from.map((number, index) => number + gone * (to[index] - number)));
      }
      if (share < 1) request = requestAnimationFrame(turn);
      else delete sheet.dataset.moving;
    };
    turn();
  }

  function carry(share) {
    for (const known of drawn.values()) {
      const { at, along } = known.mark;
      if (!along) continue;
      const way = drawn.get(along).at;
      const gone = [0, 1].map((axis) => onCurve(way, axis, share) - onCurve(way, axis, 0.5));
      place(known, [at[0] + gone[0], at[1] + gone[1], ...at.slice(2)]);
    }
  }

  function place(known, at) {
    known.at = at;
    const { node } = known;
    if (node.tagName === "path") node.setAttribute("d", `M ${at.slice(0, 2).map(px)} C ${at.slice(2).map(px)}`);
    else NUMBERS[node.tagName].forEach((name, index) => node.setAttribute(name, px(at[index])));
  }

  /** All of a mark but its place, as far as it is new. */
  function dress(node, mark, before) {
    const role = PALETTE.roles[mark.role];
    if (mark.role !== before?.role || mark.tint !== before?.tint || mark.shares !== before?.shares) {
      node.setAttribute("class", role.class);
      const tinted = mark.tint && `color-mix(in srgb, white ${100 * mark.tint}%, ${role.fill})`;
      const pattern = mark.shares ? patternOf(mark.shares) : role.stripes && `${own}-${role.class}`;
      node.style.fill = pattern ? `url(#${pattern})` : tinted || "";
      node.style.markerEnd = role.head ? `url(#${own}-${role.class})` : "";
    }
    if (mark.text !== before?.text || mark.hint !== before?.hint) {
      node.textContent = mark.text ?? "";
      if (mark.hint) node.append(svg("title", {}, mark.hint));
    }
    if (mark.anchor && mark.anchor !== before?.anchor) node.setAttribute("text-anchor", mark.anchor);
  }

  /** The name of the pattern of a sum of shares: a band for each rank, on paper. */
  function patternOf(shares) {
    const id = `${own}-shares-${shares}`;
    if ([...defs.children].some((each) => each.id === id)) return id;
    const tall = 1 / shares.length;
    const bands = [...shares].flatMap((share, rank) => (share === "1" ? [svg("rect", {
      x: 0.1, y: (rank + 0.12) * tall, width: 0.8, height: 0.76 * tall, fill: PALETTE.ranks[rank],
    })] : []));
    const size = { width: 1, height: 1, patternContentUnits: "objectBoundingBox" };
    defs.append(svg("pattern", { id, ...size }, svg("rect", { width: 1, height: 1, style: "fill: var(--paper)" }), ...bands));
    return id;
  }

  return { sheet, paint, carry };
}

/** Where a Bézier curve is at `share`, 0 to 1, of its parameter; axis: 0 for x, 1 for y. */
function onCurve(at, axis, share) {
  const back = 1 - share;
  const parts = [back ** 3, 3 * back ** 2 * share, 3 * back * share ** 2, share ** 3];
  return parts.reduce((sum, part, point) => sum + part * at[2 * point + axis], 0);
}

const nodeOf = ({ kind, key }) => svg(kind === "curve" ? "path" : kind, { "data-key": key });

function stripesOf(role, id) {
  const size = { width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const ground = svg("rect", { width: 7, height: 7, style: `fill: ${role.fill}` });
  const stripe = svg("line", {
    x1: 3.5, x2: 3.5, y1: 0, y2: 7, style: `stroke: ${role.stripes}; stroke-width: ${role.stripesWidth}`,
  });
  return svg("pattern", { id, ...size }, ground, stripe);
}

function headOf(role, id) {
  const size = { markerWidth: 10, markerHeight: 8.5, refX: 10, refY: 4.25, markerUnits: "userSpaceOnUse", orient: "auto" };
  return svg("marker", { id, ...size }, svg("polygon", { points: "0,0 10,4.25 0,8.5", style: `fill: ${role.head}` }));
}
