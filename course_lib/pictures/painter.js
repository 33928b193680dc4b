// Paint a scene (scene.py) into one SVG. A mark that stays moves to its new place; readers who want no motion see it
// there at once. Colours come from the style sheet that roles.py writes. Stands on explorable.js.

const MOVE_MS = 140;
const NUMBERS = { rect: ["x", "y", "width", "height"], line: ["x1", "y1", "x2", "y2"], text: ["x", "y"] };

/** Returns { sheet, paint }: an <svg>, and what makes it show a scene. */
function scenePainter() {
  const stripes = newId(); // a pattern's name counts in the whole page
  const striped = Object.entries(PALETTE.roles).filter(([, role]) => role.stripes);
  const defs = svg("defs", {}, ...striped.map(([, role]) => stripesOf(role, `${stripes}-${role.class}`)));
  const sheet = svg("svg", {}, defs);
  const drawn = new Map(); // key -> { mark, node, at }: where it stands now
  let request = null;

  function paint(scene) {
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
      const known = drawn.get(mark.key) ?? { mark: null, node: svg(mark.kind, { "data-key": mark.key }), at: mark.at };
      drawn.set(mark.key, known);
      dress(known.node, mark, known.mark);
      if (known.node === next) next = next.nextSibling;
      else sheet.insertBefore(known.node, next);
      const stays = known.mark !== null && known.at.every((number, index) => number === mark.at[index]);
      if (known.mark === null || (still && !stays)) place(known, mark.at);
      else if (!stays) moving.push({ known, from: known.at });
      known.mark = mark;
    }
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

  function place(known, at) {
    known.at = at;
    NUMBERS[known.node.tagName].forEach((name, index) => known.node.setAttribute(name, px(at[index])));
  }

  /** All of a mark but its place, as far as it is new. */
  function dress(node, mark, before) {
    const role = PALETTE.roles[mark.role];
    if (mark.role !== before?.role || mark.tint !== before?.tint) {
      node.setAttribute("class", role.class);
      const tinted = mark.tint && `color-mix(in srgb, white ${100 * mark.tint}%, ${role.fill})`;
      node.style.fill = role.stripes ? `url(#${stripes}-${role.class})` : tinted || "";
    }
    if (mark.text !== before?.text || mark.hint !== before?.hint) {
      node.textContent = mark.text ?? "";
      if (mark.hint) node.append(svg("title", {}, mark.hint));
    }
    if (mark.anchor && mark.anchor !== before?.anchor) node.setAttribute("text-anchor", mark.anchor);
  }

  return { sheet, paint };
}

function stripesOf(role, id) {
  const size = { width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const ground = svg("rect", { width: 7, height: 7, style: `fill: ${role.fill}` });
  const stripe = svg("line", {
    x1: 3.5, x2: 3.5, y1: 0, y2: 7, style: `stroke: ${role.stripes}; stroke-width: ${role.stripesWidth}`,
  });
  return svg("pattern", { id, ...size }, ground, stripe);
}
