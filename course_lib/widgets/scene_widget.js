// A widget whose picture is a scene: Python lists its controls and draws, all else is the same for every such widget. Where
// it has steps, Python has sent them all as one film, and it plays here.

export default {
  render({ model, el }) {
    const { controls, show, events } = sceneControls(model);
    const film = () => model.get("frames");
    const plays = film().scenes && player(model, {
      draw: (step, playing) => paint(sceneOf(film(), step), playing ? 1 : 0.5),
      move(step, share) {
        if (share > 0) return carry(share);
        const scene = sceneOf(film(), step, Math.max(0, step - 1));
        return paint({ ...scene, key: `${scene.key} moving` }, 0);
      },
    });
    const room = 4 - controls.length; // for controls: without a reset the step slider leads back to the start
    const ofPlayer = plays ? plays.controls.filter((_, number) => room > 2 || number !== 1) : [];
    const view = shell(el, [...controls, ...ofPlayer]);
    const { paint, carry } = scenesIn(view);
    const redraw = plays ? plays.redraw : () => paint(film());
    show();
    redraw();
    model.on(events, show);
    if (!plays) model.on("change:frames", redraw);
    return () => { model.off(events, show); model.off("change:frames", redraw); plays?.close(); };
  },
};
