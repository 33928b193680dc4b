// Two extensions of JupyterLab, written by hand: no bundler.

const CHECKS = "This cell is locked: it checks your answer. Write in the cell above, and run this one with Shift+Enter; "
    + "its report has buttons for hints.";
const GIVEN = "This cell was given and is locked. For something of your own, press Escape, then B: a new cell, below.";

// A locked cell takes no keys and says nothing; this says why.
const lockedCellPlugin = {
    id: "course-lab:locked-cell",
    autoStart: true,
    activate: (app) => {
        let spokenOf = null; // once a visit, not once a key

        const lockedCell = (target) => {
            const node = target.closest?.(".jp-CodeCell, .jp-MarkdownCell");
            const panel = app.shell.currentWidget;
            const cell = panel?.content?.widgets?.find((widget) => widget.node === node);
            const inEditor = target.closest?.(".jp-InputArea-editor");
            return cell && inEditor && cell.model.getMetadata("editable") === false ? cell : null;
        };

        // Keys that would write; Shift+Enter runs the cell, and arrows move in it.
        const writes = (event) => !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing
            && (event.key.length === 1 || ["Backspace", "Delete"].includes(event.key)
                || (event.key === "Enter" && !event.shiftKey));

        document.addEventListener("keydown", (event) => {
            const cell = lockedCell(event.target);
            if (!cell || cell === spokenOf || !writes(event)) {
                return;
            }
            spokenOf = cell;
            const message = cell.model.sharedModel.getSource().includes("check(") ? CHECKS : GIVEN;
            app.commands.execute("apputils:notify", { message, type: "info", options: { autoClose: 8000 } });
            say(message);
        }, true);
        document.addEventListener("focusin", (event) => {
            if (spokenOf && !spokenOf.node.contains(event.target)) {
                spokenOf = null;
            }
        });

        // A screen reader reads what changes in a region that was there before.
        const region = document.createElement("div");
        region.id = "course-lab-says";
        region.setAttribute("role", "status");
        region.style.cssText = "position:absolute; width:1px; height:1px; overflow:hidden; clip-path:inset(50%)";
        document.body.append(region);
        const say = (message) => {
            region.textContent = "";
            setTimeout(() => { region.textContent = message; }, 50);
        };
    },
};

// When the connection to the kernel drops while a notebook opens (a busy machine, a laptop that sleeps), the manager of
// its widgets gives up those that the notebook has saved, and each output says "model not found" until it is run again.
// Here it reads them whenever it reads the kernel's; it leaves out those that are there already.
//
// On a slow machine a kernel may connect while the manager still waits for the session. Then it reads the kernel's widgets
// twice, and says that it is done before the notebook's are read: outputs that are painted in between say "model not found"
// for good. So a cell that says so is painted once more when they are read.
const VIEW = "application/vnd.jupyter.widget-view+json";
const MISSING = "Error displaying widget: model not found";
const savedWidgetsPlugin = {
    id: "course-lab:saved-widgets",
    autoStart: true,
    activate: (app) => {
        const met = new WeakSet();
        const repainted = new WeakSet();

        const repaint = async (panel, manager) => {
            const missing = [...panel.node.querySelectorAll(".jupyter-widgets")].filter((node) => node.textContent === MISSING);
            const cells = panel.content.widgets.filter((cell) => cell.model.type === "code" && !repainted.has(cell)
                && missing.some((node) => cell.node.contains(node)));
            if (!cells.length) {
                return;
            }
            cells.forEach((cell) => repainted.add(cell));
            const notebook = panel.context.model;
            await manager.restoreWidgets(notebook, { loadKernel: false, loadNotebook: true });
            const { dirty } = notebook;
            cells.forEach((cell) => cell.model.outputs.fromJSON(cell.model.outputs.toJSON()));
            notebook.dirty = dirty; // nothing has changed that would have to be saved
        };

        const keepSaved = (panel, manager) => {
            if (met.has(manager) || typeof manager.restoreWidgets !== "function") {
                return;
            }
            met.add(manager);
            const watch = new MutationObserver(() => repaint(panel, manager));
            watch.observe(panel.node, { childList: true, characterData: true, subtree: true });
            panel.disposed.connect(() => watch.disconnect());
            repaint(panel, manager);
            const restore = manager.restoreWidgets.bind(manager);
            manager.restoreWidgets = (notebook, parts) => restore(notebook, { loadKernel: true, ...parts, loadNotebook: true });
        };

        // JupyterLab hands the manager to no extension but its own; a renderer of the notebook has it.
        const meet = (panel) => {
            const rendermime = panel.content?.rendermime;
            if (rendermime?.mimeTypes.includes(VIEW)) {
                const renderer = rendermime.createRenderer(VIEW);
                renderer._manager?.promise.then((manager) => keepSaved(panel, manager)).finally(() => renderer.dispose());
            }
        };
        app.shell.layoutModified.connect(() => { [...app.shell.widgets("main")].forEach(meet); });
    },
};

globalThis._JUPYTERLAB = globalThis._JUPYTERLAB ?? {};
globalThis._JUPYTERLAB["course-lab"] = {
    init: () => undefined,
    get: () => Promise.resolve(() => ({ __esModule: true, default: [lockedCellPlugin, savedWidgetsPlugin] })),
};
