// The controls of a widget as controls.py lists them, and the place where its scenes are painted. Stands on explorable.js
// and painter.js.

/**
 * The controls of frames.controls: [{ node, set }]. chosen(label, place) may take a choice for itself: true if it did.
 * show() makes them show what the model has set: that may be ahead of the frames, whose answer is still on its way.
 */
function sceneControls(model, chosen = () => false) {
  const told = () => model.get("frames").controls;
  const labels = (number) => told()[number].choices.map(({ label }) => label);
  const places = (number) => [...labels(number).keys()];
  const choose = (number, place) => {
    if (chosen(told()[number].label, place)) return;
    model.set(told()[number].choices[place].change);
    model.save_changes();
  };
  const present = ({ names, choices }) => choices.findIndex(({ change }) => (
    names.some((name) => name in change) && names.every((name) => !(name in change) || change[name] === model.get(name))));
  const controls = told().map(({ kind, label }, number) => (kind === "slider"
    ? slider({
      label, values: places(number), value: 0, show: (place) => labels(number)[place] ?? "",
      onInput: (place) => choose(number, place),
    })
    : chooser({ label, labels: labels(number), value: 0, onChange: (place) => choose(number, place) })));
  function show() {
    told().forEach((control, number) => {
      const place = present(control);
      if (place < 0) return; // Python has set another value: frames that know it will come
      controls[number].set(place, control.kind === "slider" ? places(number) : labels(number));
      controls[number].enable(control.enabled);
    });
  }
  const names = told().flatMap((control) => control.names);
  return { controls, show, events: [...names, "frames"].map((name) => `change:${name}`).join(" ") };
}

/** Returns { paint(scene, share), carry(share) }: what makes `view` show a scene, headline and all. */
function scenesIn(view) {
  const { sheet, paint, carry } = scenePainter();
  const show = (scene, share) => {
    view.say(scene.headline, scene.detail);
    paint(scene, share);
    view.draw(scene.key, scene.alternative, sheet);
  };
  return { paint: show, carry };
}
