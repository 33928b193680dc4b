// A widget whose picture is a scene: Python lists its controls and draws, all else is the same for every such widget.

export default {
  render({ model, el }) {
    const { controls, show, events } = sceneControls(model);
    const view = shell(el, controls);
    const paint = scenesIn(view);
    const redraw = () => paint(model.get("frames"));
    show();
    redraw();
    model.on(events, show);
    model.on("change:frames", redraw);
    return () => { model.off(events, show); model.off("change:frames", redraw); };
  },
};
