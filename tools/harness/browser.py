"""A real JupyterLab and a page in it: what the browser tests drive. No pytest here."""

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from playwright.sync_api import ConsoleMessage, Locator, Page

COURSE = Path(__file__).resolve().parent.parent.parent
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
)
CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]
SERVER_FLAGS = [
    "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root", "--IdentityProvider.token=",
    "--ServerApp.password=", "--LabApp.expose_app_in_browser=True",
]
STATE_FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
                 "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
SERVER_START_S = 60
PAGE_S = 60
RUN_ALL_S = 180  # a chapter takes at most 60 s on 2 quiet cores


def find_chromium() -> str | None:
    """The Chromium or Chrome of this machine: $CHROMIUM, then the PATH, then the usual places; or None."""
    if os.environ.get("CHROMIUM"):
        return os.environ["CHROMIUM"]
    on_path = (shutil.which(name) for name in CHROMIUM_NAMES)
    in_place = (place for place in CHROMIUM_PLACES if Path(place).exists())
    return next((found for found in (*on_path, *in_place) if found), None)


class LabServer:
    """JupyterLab on a free port, serving `root`, with no setting or state of the user's.

    `settings` are environment variables beside its own: those of tools.lab make it the one that readers have.
    """

    def __init__(self, root: Path, state: Path, settings: dict[str, str] | None = None) -> None:
        # It starts in `root`, where formgrader looks for nbgrader_config.py; its extension is imported from the course.
        on_path = os.pathsep.join(filter(None, [str(COURSE), os.environ.get("PYTHONPATH")]))
        environment = dict(os.environ, JUPYTER_PREFER_ENV_PATH="1", PYTHONPATH=on_path, **(settings or {}))
        environment |= {name: str(state / name.lower()) for name in STATE_FOLDERS}
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *SERVER_FLAGS, f"--ServerApp.root_dir={root}"],
            env=environment, text=True, cwd=root,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        self.log: list[str] = []
        address: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read_log, args=(address,), daemon=True).start()
        try:
            self.url = address.get(timeout=SERVER_START_S)
        except queue.Empty:
            self.stop()
            raise RuntimeError("JupyterLab did not start:\n" + "".join(self.log)) from None

    def _read_log(self, address: "queue.Queue[str]") -> None:
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"(http://127\.0\.0\.1:\d+)/lab", line)
            if found:
                address.put(found[1])

    def stop(self) -> None:
        """End the server and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@dataclass
class LabNotebook:
    """One notebook open in one page. `page` is Playwright's, for whatever a test needs beyond this."""

    page: Page
    console_errors: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Collect what the page reports as an error from now on."""

        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error":
                self.console_errors.append(f"{message.text} ({message.location.get('url', '')})")

        self.page.on("console", on_console)
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))

    def open(self, url: str) -> None:
        """Load the page and wait until the notebook is shown and its kernel answers."""
        self.page.goto(url)
        widget = "window.jupyterapp.shell.currentWidget"
        shown = f"window.jupyterapp && {widget}?.sessionContext"
        self.page.wait_for_function(shown, timeout=1000 * PAGE_S)
        self.settle("window.jupyterapp.restored", PAGE_S)
        self.settle(f"{widget}.context.ready", PAGE_S)
        self.settle(f"{widget}.sessionContext.ready", PAGE_S)

    def run_all(self) -> None:
        """Run all cells from the top; returns when the last has run or one has failed."""
        self.settle("window.jupyterapp.commands.execute('notebook:run-all-cells')", RUN_ALL_S)
        # The command also returns at an error that raises-exception announces, while later cells still wait.
        # A silent request comes after them all in the kernel's queue.
        kernel = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
        silent = "{code: '', silent: true, stop_on_error: false}"
        self.settle(f"{kernel}.requestExecute({silent}).done", RUN_ALL_S)

    def settle(self, promise: str, limit_s: float) -> None:
        """Wait until the JavaScript `promise` is kept or broken; TimeoutError after `limit_s`.

        page.evaluate would wait for ever, for example behind a dialog that asks for a kernel.
        """
        self.page.evaluate(f"""() => {{
            window.settled = false;
            Promise.resolve({promise}).finally(() => {{ window.settled = true; }});
        }}""")
        self.page.wait_for_function("window.settled", timeout=1000 * limit_s)

    def change_theme(self, theme: str) -> None:
        """To JupyterLab's "light" or "dark" theme; returns when the page shows it."""
        command = f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{THEMES[theme]}'}})"
        self.settle(command, PAGE_S)
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(theme == 'light').lower()}'")

    def ask(self, code: str) -> str:
        """What `code` prints in the notebook's kernel."""
        self.page.evaluate("""(code) => {
            window.printed = "";
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            window.asking = kernel.requestExecute({ code });
            window.asking.onIOPub = (message) => { window.printed += message.content.text ?? ""; };
        }""", code)
        self.settle("window.asking.done", PAGE_S)
        return self.page.evaluate("window.printed")

    def stored(self) -> nbformat.NotebookNode:
        """The notebook as it would be saved now, outputs included."""
        return nbformat.from_dict(self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.context.model.toJSON()"
        ))

    def cell(self, index: int) -> Locator:
        """The cell at `index`, counting from 0 over all cells."""
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"]')

    def close(self) -> None:
        """Shut the kernel down and leave the page."""
        self.settle("window.jupyterapp?.shell.currentWidget?.sessionContext.shutdown()", PAGE_S)
        self.page.context.close()
