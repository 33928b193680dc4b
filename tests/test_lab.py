"""`python -m tools.lab`: its address is the last line, Ctrl-C ends it and its kernels, and what it saves is small."""

import copy
import json
import os
import signal
import subprocess
import sys
import urllib.request

import psutil
import pytest

from tools.lab import saved_widgets, settings_in_environment
from tools.lab.saved_widgets import STATE, VIEW, trim
from tools.workspace import ROOT

STATE_FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
                 "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to a whole console there")
def test_the_address_is_the_last_line_and_ctrl_c_ends_the_server_and_its_kernels(tmp_path):
    environment = {**os.environ, **{name: str(tmp_path / name) for name in STATE_FOLDERS}}
    command = [sys.executable, "-m", "tools.lab", "--teach", "--", "--no-browser", "--ServerApp.port=0"]
    lab = subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        lines = []
        while not lines or not lines[-1].startswith("http"):
            lines.append(lab.stdout.readline())
            assert lines[-1], f"it ended: {lines}"
        assert len(lines) < 6
        address, token = lines[-1].strip().split("/lab?token=")
        asked = urllib.request.Request(f"{address}/api/kernels", b"{}", {"Authorization": f"token {token}"})
        kernel = json.load(urllib.request.urlopen(asked))
        assert kernel["id"]
        processes = psutil.Process(lab.pid).children(recursive=True)
        assert processes
        lab.send_signal(signal.SIGINT)
        assert lab.communicate(timeout=60)[0] == "" and lab.returncode == 0
        assert not any(process.is_running() for process in processes)
    finally:
        lab.kill()


def model(script: str = "", sheet: str = "", **state: object) -> dict:
    return {"model_name": "AnyModel", "state": {"_esm": script, "_css": sheet, **state}}


def notebook(shown: list[str], saved: dict) -> dict:
    outputs = [{"data": {VIEW: {"model_id": name}, "image/png": "..."}} for name in shown]
    return {"cells": [{"outputs": outputs}, {"cell_type": "markdown"}],
            "metadata": {"widgets": {STATE: {"state": saved}}} if saved else {}}


def test_what_is_saved_has_one_copy_of_each_script_and_no_widget_that_no_output_shows():
    saved = notebook(["a", "b", "c"], {
        "a": model("long", "sheet", layout="IPY_MODEL_d"), "b": model("long", "sheet"), "c": model("other"),
        "d": {"state": {}}, "gone": model("long", "sheet"), "gone_too": model("rare")})
    trim(saved)
    state = saved["metadata"]["widgets"][STATE]["state"]
    assert state.keys() == {"a", "b", "c", "d"}
    scripts, sheets = ([state[name]["state"][kind] for name in "abc"] for kind in ("_esm", "_css"))
    assert scripts[0] == "long" and scripts[2] == "other" and 'get_model("a")' in scripts[1]
    assert sheets == ["sheet", "", ""]
    again = copy.deepcopy(saved)
    trim(again)
    assert again == saved
    del saved["cells"][0]["outputs"][0]  # the widget that lent its script goes, and the script stays
    trim(saved)
    assert saved["metadata"]["widgets"][STATE]["state"] == {"b": model("long", "sheet"), "c": model("other")}


def test_a_widget_whose_state_is_lost_leaves_its_picture_and_what_has_no_widgets_is_saved_as_it_is():
    lost = notebook(["lost"], {})
    trim(lost)
    assert lost["cells"][0]["outputs"][0]["data"] == {"image/png": "..."}
    for content in ({"type": "file", "content": "text"}, {"type": "notebook", "content": None},
                    {"type": "notebook", "content": {"nbformat": 4, "cells": [], "metadata": {}}}):
        before = copy.deepcopy(content)
        saved_widgets.on_save(content, path="x", contents_manager=None)
        assert content == before


def test_a_readers_own_settings_come_before_the_courses_and_only_teachers_have_the_menus_of_nbgrader(monkeypatch):
    monkeypatch.setenv("JUPYTER_PATH", "mine")
    assert settings_in_environment()["JUPYTER_PATH"].split(os.pathsep)[0] == "mine"
    reader, teacher = (settings_in_environment(teach)["JUPYTER_CONFIG_PATH"] for teach in (False, True))
    assert "self_study" in reader and "self_study" not in teacher
