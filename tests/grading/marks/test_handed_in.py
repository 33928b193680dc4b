"""Which file is the notebook, whatever browsers made of its name; and what is wrong with it, in words."""

import io
import json
import os
import re
import stat
import zipfile
from contextlib import chdir
from pathlib import Path

import nbformat
import pytest
from nbgrader.apps import ZipCollectApp
from nbgrader.utils import capture_log

from course_lib.grading.marks import reading
from course_lib.grading.marks.handed_in import look_at, problem_of, take_in
from course_lib.grading.marks.reading import read_notebook
from course_lib.grading.marks.standing import Standing, Status, report
from tests.grading.courses import ROOT
from tests.grading.submissions import NAME
from tools import collect

STUB = (ROOT / "exercises" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")
IDS = frozenset(cell["metadata"]["nbgrader"]["grade_id"] for cell in json.loads(STUB)["cells"]
                if "nbgrader" in cell["metadata"])


OWN, COPY, SECOND = f"{NAME}.ipynb", f"{NAME} (1).ipynb", f"{NAME} (2).ipynb"


def put(folder, **files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("files, taken, words", [
    ([OWN], OWN, ""), ([COPY], COPY, f"taken from '{COPY}'"), ([OWN, "other.ipynb"], OWN, ""),
    (["homework.ipynb", "report.pdf"], "homework.ipynb", "taken from 'homework.ipynb'"),  # known by its cells
    (["sub/homework.ipynb", ".ipynb_checkpoints/homework-checkpoint.ipynb"], "homework.ipynb", "'sub/homework.ipynb'"),
    ([COPY, SECOND], None, f"2 notebooks that differ could be it: '{COPY}', '{SECOND}'"),
    ([OWN, COPY], None, f"2 notebooks that differ could be it: '{OWN}', '{COPY}'"),
    (["other.ipynb"], None, f"no {OWN} in the folder; there is 'other.ipynb'"),
    (["report.pdf"], None, f"no {OWN} in the folder; there is 'report.pdf'"), ([], None, "the folder is empty"),
])
def test_the_one_notebook_is_found_whatever_its_name_is_and_of_two_that_differ_none(tmp_path, files, taken, words):
    put(tmp_path, **{file: STUB + "\n" * place for place, file in enumerate(files) if file != "other.ipynb"})
    put(tmp_path, **{"other.ipynb": '{"cells": []}'} if "other.ipynb" in files else {})
    found = look_at(tmp_path, NAME, IDS)
    assert (found.notebook and found.notebook.name) == taken and bool(found.problem) == (taken is None)
    assert words in found.note + found.problem


def test_a_copy_under_the_right_name_stays_one_with_its_original_until_another_file_comes(tmp_path):
    folder = put(tmp_path / "ada" / NAME, **{COPY: STUB})
    for _ in range(2):
        assert take_in(tmp_path, NAME, IDS)["ada"].note == f"taken from '{COPY}'"
        assert (folder / OWN).read_text(encoding="utf-8") == STUB
    put(folder, **{SECOND: STUB + "\n"})
    assert "leave the one that counts" in take_in(tmp_path, NAME, IDS)["ada"].problem


def test_one_students_file_and_one_students_name_stop_nobody_else(tmp_path):
    put(tmp_path / "ada" / NAME, **{"x.json": "[" * 100_000})
    put(tmp_path / "bob" / NAME, **{OWN: STUB})
    put(tmp_path / "cy [2]" / NAME, **{OWN: STUB})
    put(tmp_path / "di", **{COPY: STUB})
    put(tmp_path / "eve" / "03_data_parallel", **{"03_data_parallel.ipynb": STUB})
    os.mkdir(os.fsencode(tmp_path) + b"/\xe9")
    found = take_in(tmp_path, NAME, IDS)
    assert "no 02_collectives.ipynb" in found["ada"].problem and not found["bob"].problem
    assert "rename it" in found["cy [2]"].problem and f"'{COPY}' beside a folder {NAME}" in found["di"].problem
    assert len(found) == 5 and any("not UTF-8" in each.problem for each in found.values())
    report("02", [Standing(student, Status.NO_NOTEBOOK, each.problem) for student, each in found.items()]).encode()


@pytest.mark.parametrize("text, words", [
    ("", "line 1"), (STUB[:3000], "line "), ("<html></html>", "line 1"), ('{"cells": [}, "metadata": {}}', "line 1"),
    ("[1, 2]", "no cells"), ('{"a": 1}', "no cells"), ("[" * 100_000, "recursion"),
    ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "")])
def test_a_file_that_is_no_notebook_is_called_so_with_the_place(tmp_path, text, words):
    problem = problem_of(put(tmp_path, **{OWN: text}) / OWN)
    assert "no notebook" in problem and words in problem


def link_to_a_neighbour(folder, path):
    path.symlink_to(folder.parents[1] / "bob" / NAME / OWN)


LAID = {
    "is a link": link_to_a_neighbour,
    "'data.txt' is a link": lambda folder, path: (put(folder, **{OWN: STUB}) / "data.txt").symlink_to("/etc/passwd"),
    "'.hidden' is a link": lambda folder, path: (put(folder, **{OWN: STUB}) / ".hidden").symlink_to("/dev/zero"),
    "'sub/loop' is a link": lambda folder, path: (put(folder, **{f"sub/{OWN}": STUB}) / "sub/loop").symlink_to(folder),
    "is a hard link": lambda folder, path: os.link(put(folder.parents[2], solved=STUB) / "solved", path),
    "is a named pipe": lambda folder, path: os.mkfifo(path),
    f"{OWN} is a folder": lambda folder, path: put(path, **{"x.ipynb": STUB}),
    "more than 1000 files": lambda folder, path: put(folder, **{f"{number}.txt": "" for number in range(1001)}),
    "30 folders in one another": lambda folder, path: put(folder, **{f"{'a/' * 40}{OWN}": STUB}),
    "256 MB": lambda folder, path: os.truncate(put(folder, **{"big.ipynb": ""}) / "big.ipynb", 1 << 40),
    "more than 100 MiB": lambda folder, path: os.truncate(put(folder, **{OWN: STUB}) / OWN, 101 << 20),
}


def test_what_is_no_plain_file_or_too_much_is_refused_with_a_sentence_and_nobody_elses_file_is_touched(tmp_path):
    tmp_path, elsewhere = tmp_path / "submitted", tmp_path / "solutions" / NAME
    put(tmp_path / "bob" / NAME, **{OWN: STUB})
    for words, lay in LAID.items():
        student = re.sub(r"\W+", "_", words)
        (tmp_path / student / NAME).mkdir(parents=True)
        lay(tmp_path / student / NAME, tmp_path / student / NAME / OWN)
    (tmp_path / "a_link").symlink_to(tmp_path / "bob")
    put(elsewhere, **{COPY: STUB + " "})
    (tmp_path / "into_another").mkdir()
    (tmp_path / "into_another" / NAME).symlink_to(elsewhere)
    put(tmp_path / "Zoe\u0308" / NAME, **{OWN: STUB}), put(tmp_path / "Zo\xeb" / NAME, **{OWN: STUB})
    for name in ("<img src=x onerror=f()>", "a\x1b[2J", "b\u202egnp", 'c"'):
        put(tmp_path / name / NAME, **{OWN: STUB})
    found = take_in(tmp_path, NAME, IDS)
    for words in LAID:
        assert words in found[re.sub(r"\W+", "_", words)].problem
    assert "the folder is a link" in found["a_link"].problem and "is a link" in found["into_another"].problem
    assert "capitals or accents" in found["Zoe\u0308"].note and not found["Zo\xeb"].problem
    assert sum("rename it" in each.problem for each in found.values()) == 4
    assert not found["bob"].problem and os.listdir(elsewhere) == [COPY]
    assert os.listdir(tmp_path / "bob" / NAME) == [OWN] and (tmp_path / "bob" / NAME / OWN).read_text() == STUB


def test_a_byte_order_mark_costs_nothing_and_is_gone_for_nbgrader(tmp_path):
    for name in (OWN, COPY):
        folder = put(tmp_path / name / NAME, **{name: "\ufeff" + STUB, f"again/{COPY}": STUB})
        for _ in range(2):
            seen = take_in(tmp_path, NAME, IDS)[name]
            assert not seen.problem and nbformat.read(folder / OWN, 4).cells


def test_a_file_that_is_no_text_is_called_so_and_what_nbgrader_can_grade_has_no_problem(tmp_path):
    (tmp_path / "a.ipynb").write_bytes(b"PK\x03\x04\xff\xfe")
    assert "can't decode" in problem_of(tmp_path / "a.ipynb")
    assert problem_of(put(tmp_path, **{OWN: "\ufeff" + STUB}) / OWN) == ""


# ---- what stands in a file costs nothing but its own marks

def with_cell(**fields) -> str:
    """The notebook that was given out, with a first cell that has these fields."""
    notebook = json.loads(STUB)
    notebook["cells"].insert(0, {"cell_type": "code", "metadata": {}, "source": "x = 1", "outputs": [],
                                 "execution_count": None, "id": "a", **fields})
    return json.dumps(notebook)


LISTS = json.loads("[" * 500 + "]" * 500)
ODD = {
    "deep metadata": with_cell(metadata={"a": LISTS}), "half a letter": with_cell(source="\ud800"),
    "no number": with_cell(metadata={"a": float("nan")}), "outputs are a number": with_cell(outputs=3),
    "no metadata": with_cell(metadata=None), "metadata is a list": with_cell(metadata=[1]),
    "another kind": with_cell(cell_type=7), "an unhashable kind": with_cell(cell_type=[]),
    "two ids": with_cell(id=json.loads(STUB)["cells"][0]["id"]), "id is a list": with_cell(id=["a"]),
    "forged marks": with_cell(metadata={"nbgrader": {"grade_id": ["x"], "points": -1, "schema_version": 99}}),
    "attachments": with_cell(cell_type="markdown", attachments={"a": 3}),
    "a huge execution count": with_cell(execution_count=10 ** 4000),
    "an output of 20 MB": with_cell(outputs=[{"output_type": "stream", "name": "stdout", "text": "x" * 20_000_000}]),
    "metadata of another program": STUB.replace('"kernelspec"', '"widgets": 3, "language_info": [], "kernelspec"'),
}
NO_NOTEBOOK = {
    "a number of 5,000 digits": with_cell().replace('"execution_count": null', f'"execution_count": {"9" * 5000}'),
    "the source is a number": with_cell(source=3), "the source is a dict": with_cell(source={"a": 1}),
    "lists without end": '{"cells": [' + "[" * 200_000, "a million lists": '{"cells": [' + "[]," * 1_000_000 + "[]]}",
    "cells is a dict": '{"cells": {"a": 1}, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
    "a cell is a list": STUB.replace('"cells": [', '"cells": [[],', 1), "null": "null",
    "text without end": with_cell(source="x" * 5_000_000),
    "of the future": STUB.replace('"nbformat": 4', '"nbformat": 9'),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_fields_of_a_notebook_are_left_where_they_are(tmp_path, name):
    notebook = read_notebook(put(tmp_path, **{OWN: ODD[name]}) / OWN)
    nbformat.validate(notebook)
    assert {cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata} == IDS
    nbformat.writes(notebook).encode()


@pytest.mark.parametrize("name", NO_NOTEBOOK)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, name):
    problem = problem_of(put(tmp_path, **{OWN: NO_NOTEBOOK[name]}) / OWN)
    assert "no notebook" in problem and len(problem) < 300


def test_a_reader_that_ends_or_takes_too_much_is_the_files_fault(tmp_path, monkeypatch):
    path = put(tmp_path, **{OWN: '{"cells": [' + "{}," * 3_000_000 + "{}]}"}) / OWN
    monkeypatch.setattr(reading, "READING_BYTES", 300 << 20)
    with pytest.raises(ValueError, match="cut off|takes more than|MemoryError"):
        read_notebook(path)
    monkeypatch.setattr(reading, "clean", lambda path: os._exit(3))
    with pytest.raises(ValueError, match="takes more than"):
        read_notebook(path)


# ---- a learning platform's archive becomes students' folders, by nbgrader's own `zip_collect`

# Three students each: with a letter and a space that are not ASCII's, late; handed in twice; renamed by a browser. Then
# what falls through. `...` stands for the assignment's name.
ARCHIVES = {
    "MOODLE": (["Zoë Noether_17_assignsubmission_file/....ipynb", "Bob B_18_assignsubmission_file_/... (1).ipynb",
                "Cy_19_assignsubmission_file_....ipynb", "Twice_20_assignsubmission_file/....ipynb",
                "Twice_20_assignsubmission_file/... (1).ipynb"], ["Di_21_assignsubmission_onlinetext_/onlinetext.html"],
               ["Zoë Noether_17", "Bob B_18", "Cy_19", "Twice_20"]),
    "CANVAS": (["noether zoë_LATE_11_501_....ipynb", "bob_12_502_...-1.ipynb", "cy_13_503_... (1).ipynb"],
               ["....ipynb"], ["noether zoë", "bob", "cy"]),
    "BLACKBOARD": (["Chapter 2_zoë n_attempt_2026-01-30-23-59-59_....ipynb",
                    "Chapter 2_bob_attempt_2026-01-30-09-59-00_....ipynb",
                    "Chapter 2_bob_attempt_2026-01-30-09-08-45_....ipynb",
                    "Chapter 2_cy_attempt_2026-01-30-00-00-00_... (1).ipynb"],
                   ["Chapter 2_bob_attempt_2026-01-30-09-08-45.txt"], ["zoë n", "bob", "cy"]),
}


# What mallory may choose: names behind the platform's own, and archives in which anything lies.
MALLORY = {"MOODLE": "Mallory_7_assignsubmission_file", "CANVAS": "mallory_7_700",
           "BLACKBOARD": "Chapter 2_mallory_attempt_2026-01-30-09-00-00"}
ADA = {"MOODLE": "Ada_1_assignsubmission_file_", "CANVAS": "ada_1_100_",
       "BLACKBOARD": "x_ada_attempt_2026-01-31-15-00-00_"}


def packed(**files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def hostile_archives(ada):
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    linked, cannot_read = io.BytesIO(), zipfile.ZipInfo(OWN)
    cannot_read.external_attr = stat.S_IFREG << 16 | 0o000
    with zipfile.ZipFile(linked, "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr(cannot_read, STUB)
    climbs = {f"../../{ada}{OWN}": "climbed", f"/tmp/{ada}{OWN}": "climbed", f"..\\..\\{ada}{OWN}": "climbed",
              f"{ada}{OWN}": "climbed", f"extracted/{ada}{OWN}": "climbed",
              f"downloaded/x/extracted/a/{ada}{OWN}": "climbed", "n" * 300: "", "a\0b": "",
              f"{'d/' * 500}x.ipynb": "", ".": "", "con/../x.ipynb": ""}
    inner = packed(**{"x.ipynb": "{}"})
    for _ in range(10):
        inner = packed(**{"x.zip": inner})
    return {"climbs": packed(**climbs), "links": linked.getvalue(), "deep": inner, "damaged": b"PK\x03\x04 and no more",
            "bomb": packed(**{f"{number}.ipynb": bytes(2 << 20) for number in range(3)}),
            "many": packed(**{f"{number}.ipynb": "" for number in range(150)}),
            f"{NAME}.ipynb": packed(**{"x.ipynb": "{}"}),  # its folder has the name of the notebook
            "": packed(**{"tmp/climbed_02.ipynb": "{}"})}  # named `.zip`: the rest begins with /


@pytest.mark.parametrize("platform", ARCHIVES)
def test_no_file_of_one_student_becomes_anothers_or_stops_the_class(tmp_path, platform, monkeypatch):
    monkeypatch.setattr(collect, "MOST_BYTES", 4 << 20)
    monkeypatch.setattr(collect, "MOST_FILES", 100)
    config = (ROOT / "nbgrader_config.py").read_text(encoding="utf-8")
    put(tmp_path, **{"nbgrader_config.py": config.replace("PLATFORM = MOODLE", f"PLATFORM = {platform}"),
                     f"exercises/{NAME}/{OWN}": STUB, f"downloaded/{NAME}/archive/more.txt": ""})
    mallory, ada = MALLORY[platform], ADA[platform]
    with zipfile.ZipFile(tmp_path / "downloaded" / NAME / "archive" / "all.zip", "w") as archive:
        archive.writestr(f"{ada}{OWN}", STUB)
        archive.writestr(f"{ada.replace('Ada', 'Bob').replace('ada', 'bob')}work.zip", packed(**{f"work/{OWN}": STUB}))
        for number, (name, content) in enumerate(hostile_archives(ada).items()):
            archive.writestr(f"{mallory}{number if platform == 'CANVAS' else ''}_{name}.zip", content)
        for name in (OWN, f"{ada}{OWN}", f"extracted/{ada}{OWN}", f"{ada}/{OWN}", f"{ada[:-1]}/{ada}{OWN}", "x.tar.gz"):
            archive.writestr(f"{mallory}_{name}", "climbed")
        for name in (f"{mallory.replace('_file', '_onlinetext')}_/{ada}{OWN}", f"{mallory}_/{OWN}", f"{mallory}/{OWN}"):
            archive.writestr(name, "climbed" if platform == "MOODLE" else "{}")
    app = ZipCollectApp()
    with chdir(tmp_path):
        app.initialize([NAME])
        assert capture_log(app)["success"]
    submitted = sorted(path.name for path in (tmp_path / "submitted").iterdir())
    assert [re.sub(r"_\d+", "", student).lower() for student in submitted] == ["ada", "bob", "mallory"]
    own = tmp_path / "submitted" / submitted[0] / NAME
    assert [path.name for path in own.glob("*.ipynb")] == [OWN] and (own / OWN).read_text(encoding="utf-8") == STUB
    assert sum(path.stat().st_size for path in (tmp_path / "downloaded").rglob("*") if path.is_file()) < 16 << 20
    found = take_in(tmp_path / "submitted", NAME, IDS)
    assert not Path("/tmp/climbed_02.ipynb").exists()
    assert [bool(found[student].problem) for student in submitted] == [False, False, True]


@pytest.mark.parametrize("platform", ARCHIVES)
def test_zip_collect_makes_students_folders_of_each_platforms_archive_and_names_what_falls_through(tmp_path, platform):
    files, lost, students = ARCHIVES[platform]
    config = (ROOT / "nbgrader_config.py").read_text(encoding="utf-8")
    put(tmp_path, **{"nbgrader_config.py": config.replace("PLATFORM = MOODLE", f"PLATFORM = {platform}"),
                     f"exercises/{NAME}/{OWN}": STUB, f"downloaded/{NAME}/archive/more.txt": ""})
    lost = [*lost, f"__MACOSX/._{files[0]}", "timestamp.txt".join(files[0].rsplit("....ipynb", 1))]
    with zipfile.ZipFile(tmp_path / "downloaded" / NAME / "archive" / "all.zip", "w") as archive:
        for path in (*files, *lost):
            archive.writestr(path.replace("...", NAME), STUB + "\n" * path.count("(1)") + " " * path.count("-08-"))
    app = ZipCollectApp()
    with chdir(tmp_path):
        app.initialize([NAME])
        log = capture_log(app)["log"]
    for path in (*lost, "more.txt"):
        assert re.search(f"Skipped submission with no match .*{re.escape(path.replace('...', NAME))}", log)
    found = take_in(tmp_path / "submitted", NAME, IDS)
    assert list(found) == sorted(students)
    assert [student for student in students if found[student].problem] == ["Twice_20"] * (platform == "MOODLE")
    for student in students:  # of two attempts the later one
        text = (tmp_path / "submitted" / student / NAME / OWN).read_text(encoding="utf-8")
        assert text.rstrip("\n") == STUB.rstrip("\n")
    assert f"taken from '{COPY}'" in [each.note for each in found.values()]
    if platform == "BLACKBOARD":  # nbgrader takes off for it what comes late
        assert (tmp_path / "submitted" / "zoë n" / NAME / "timestamp.txt").read_text() == "2026-01-30 23:00:00"
