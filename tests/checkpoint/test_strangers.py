"""A checkpoint that somebody else made to do harm: nothing in it is run, nothing outside it is read or written, and it
costs a sentence in seconds. Each is signed as ours are: a manifest has no secret.
"""

import io
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path

import pytest
from torch.distributed.checkpoint.metadata import MetadataIndex

from course_lib import checkpoint
from course_lib.checkpoint import DamagedCheckpoint, manifest
from course_lib.train import main
from tests.checkpoint.one_run import One, rewrite

HARM = "import pathlib; pathlib.Path('harm').write_text('done')"
META = "torch.distributed.checkpoint.metadata"


def text(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


EXEC = named("builtins", "exec") + b"X" + struct.pack("<I", len(HARM)) + HARM.encode() + b"\x85R"
PICKLES = {
    "reduce": (EXEC, "it names 'builtins.exec'"),
    "global": (b"cbuiltins\nexec\n(V" + HARM.encode() + b"\ntR", "no such file"),
    "inst": (b"(V" + HARM.encode() + b"\nibuiltins\nexec\n", "no such file"),
    "obj": (b"(" + named("subprocess", "Popen") + text("true") + b"o", "'subprocess.Popen'"),
    "newobj_ex": (named("subprocess", "Popen") + text("true") + b"\x85}\x92", "'subprocess.Popen'"),
    "extension": (b"\x82\x01", "EXT1"),
    "a dotted name": (named("collections", "OrderedDict.__init__.__globals__"), "OrderedDict.__init__.__globals__"),
    "by way of a known module": (named(META, "os.system"), f"{META}.os.system"),
    "getattr": (named("builtins", "getattr") + named(META, "Metadata") + text("__init__") + b"\x86R", "getattr"),
    "torch's own rebuilding": (named("torch._utils", "_rebuild_from_type_v2") + b"(" + EXEC + b"tR", "_rebuild_from"),
    "an attribute of a class": (named(META, "Metadata") + b"N}" + text("__init__") + b"Ns\x86b", "a Metadata should"),
    "a persistent id": (b"Vword\nQ", "no such file"),
    "deep lists": (b"]" * 4_000_000, "too deep"),
    "deep tuples": (b"N" + b"\x85" * 200_000, "a Metadata should"),
    "deep tuples as a key": (b"}N" + b"\x85" * 200_000 + b"Ns", "a key is neither"),
    "a place in the memo": (b"Nr\xff\xff\xff\x7f", "a Metadata should"),
    "a large bytearray": (b"\x96" + struct.pack("<Q", 2**36), "is not what torch"),
    "laughs": (b"]\x94" + b"".join(b"](" + (b"h" + bytes([k])) * 100 + b"e\x94" for k in range(40)), "a Metadata"),
    "nothing": (b"", "is not what torch"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkpoint, in a folder beside which something else lies."""
    monkeypatch.chdir(tmp_path)
    one = One()
    one.step()
    one.save(tmp_path / "run", 1)
    (tmp_path / "precious").write_text("precious")
    return tmp_path / "run"


def sign(path: Path, **changes: object) -> None:
    files = {name: manifest.describe_file(path / name) for name in manifest.read_manifest(path)["files"]}
    rewrite(path, **{"files": files, **changes})


def require_refused(folder: Path, said: str, capsys: pytest.CaptureFixture) -> None:
    """All that reads a checkpoint refuses it, in seconds, with what it is; and nothing has happened."""
    run = One(1)
    before = [parameter.clone() for parameter in run.model.parameters()]
    for read in (lambda: checkpoint.load(folder, *run.both), lambda: checkpoint.read_state_dict(folder),
                 lambda: checkpoint.export_safetensors(folder, "file")):
        begun = time.monotonic()
        with pytest.raises(DamagedCheckpoint, match=said):
            read()
        assert time.monotonic() - begun < 20
    main(["inspect", str(folder)])
    assert "DAMAGED" in (told := capsys.readouterr().out) and told.isascii()
    assert all(old.equal(new) for old, new in zip(before, run.model.parameters()))
    assert sorted(path.name for path in Path().iterdir()) == ["precious", "run"]


@pytest.mark.parametrize("name", PICKLES)
def test_a_list_of_tensors_that_is_a_program_is_not_run(folder, name, capsys):
    program, said = PICKLES[name]
    path = checkpoint.latest(folder)
    (path / ".metadata").write_bytes(b"\x80\x04" + program + b".")
    sign(path)
    require_refused(folder, said, capsys)


# What a list of tensors may say

def other_files(metadata, name):
    for place in metadata.storage_data.values():
        place.relative_path = name


def huge(metadata):
    tensor = metadata.state_dict_metadata["norm.weight"]
    tensor.size = tensor.chunks[0].sizes = type(tensor.size)([10**15])


def repeat(metadata):
    metadata.state_dict_metadata |= {f"a{k}": metadata.state_dict_metadata["norm.weight"] for k in range(10_000)}


def rename(metadata, name):
    metadata.state_dict_metadata[name] = metadata.state_dict_metadata.pop("norm.weight")
    old = next(index for index in metadata.storage_data if index.fqn == "norm.weight")
    metadata.storage_data[MetadataIndex(name, old.offset)] = metadata.storage_data.pop(old)


def half(metadata):
    chunk = metadata.state_dict_metadata["norm.weight"].chunks[0]
    chunk.sizes = type(chunk.sizes)([4])


LISTS = {
    "an absolute path": (lambda metadata: other_files(metadata, os.path.abspath("precious")), "outside the files"),
    "a path upwards": (lambda metadata: other_files(metadata, "../../precious"), "outside the files"),
    "a tensor of 10^15 numbers": (huge, "numbers in [0-9,]+ bytes"),
    "a box many times": (repeat, "or it is there twice"),
    "half a tensor": (half, "are not the whole tensor"),
    "a name for a terminal": (lambda metadata: rename(metadata, "\x1b[2J"), "a tensor called"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_tensors_that_asks_for_what_is_not_there_is_refused(folder, name, capsys):
    change, said = LISTS[name]
    path = checkpoint.latest(folder)
    metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    sign(path)
    require_refused(folder, said, capsys)


def numbers_of(path: Path, change: object, method: int) -> None:
    """The box of norm.weight with other members, at the end of its file."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    place = next(place for index, place in metadata.storage_data.items() if index.fqn == "norm.weight")
    content, made = (path / place.relative_path).read_bytes(), io.BytesIO()
    old = zipfile.ZipFile(io.BytesIO(content[place.offset:place.offset + place.length]))
    with zipfile.ZipFile(made, "w", method) as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename.partition("/")[2], old.read(info)))
    place.offset, place.length = len(content), len(made.getvalue())
    (path / place.relative_path).write_bytes(content + made.getvalue())
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    sign(path)


@pytest.mark.parametrize(("member", "content", "method", "said"), [
    ("data.pkl", b"\x80\x04" + EXEC + b".", zipfile.ZIP_STORED, "it names 'builtins.exec'"),
    ("data.pkl", b"\x80\x02" + b"]" * 10_000, zipfile.ZIP_STORED, "is not|are no tensor"),
    ("data/0", b"\0" * 10**8, zipfile.ZIP_DEFLATED, "numbers in|compressed"),
    ("data/0", b"\0" * 4, zipfile.ZIP_STORED, "4 bytes of numbers"),
    ("byteorder", b"big", zipfile.ZIP_STORED, "another byte order"),
], ids=["a program", "a bomb", "a zip bomb", "too few numbers", "another byte order"])
def test_numbers_that_are_no_numbers_are_refused(folder, member, content, method, said):
    numbers_of(checkpoint.latest(folder), lambda name, old: content if name == member else old, method)
    for read in (lambda: checkpoint.load(folder, *One(1).both), lambda: checkpoint.read_state_dict(folder)):
        with pytest.raises(DamagedCheckpoint, match=said):
            read()
    assert sorted(path.name for path in Path().iterdir()) == ["precious", "run"]


# Manifests and folders

MANIFESTS = {
    "files": {"../../precious": {"bytes": 8, "sha256": ""}}, "step": "1", "extra": [], "layout": 7, "tied": {"a": 1},
    "options": [{"params": []}], "run": "\x1b[2J", "written_ns": 10**30,
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_another_form_is_refused(folder, name, capsys):
    rewrite(checkpoint.latest(folder), **{name: MANIFESTS[name]})
    require_refused(folder, f"its {name} has another form", capsys)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path, to: str) -> None:
    path.unlink()
    path.symlink_to(to)


def make_hole(path: Path) -> None:
    os.truncate(path, 2**41)
    rewrite(path.parent, files={path.name: {"bytes": 2**41, "sha256": ""}})


@pytest.mark.skipif(os.name == "nt", reason="makes pipes, links and holes")
@pytest.mark.parametrize(("name", "change", "said"), [
    (".metadata", pipe, "is no file"), ("__0_0.distcp", pipe, "is no file"),
    (".metadata", lambda path: link(path, "/dev/zero"), "is a link"),
    ("__0_0.distcp", lambda path: link(path, "../../precious"), "is a link"),
    ("manifest.json", lambda path: link(path, "../../precious"), "is a link"),
    ("__0_0.distcp", make_hole, "of which [0-9,]+ are on the disk"),
    ("manifest.json", lambda path: path.write_text("[" * 10**6), "cannot be read"),
])
def test_what_is_no_file_of_a_checkpoint_is_refused(folder, name, change, said, capsys):
    change(checkpoint.latest(folder) / name)
    require_refused(folder, said, capsys)


@pytest.mark.skipif(os.name == "nt", reason="makes links")
def test_nothing_outside_a_folder_is_written_by_a_save_into_it_and_its_links_are_not_followed(folder):
    run, elsewhere = One(), folder.parent / "elsewhere"
    run.resume(folder)
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(folder.parent / "precious")
    with pytest.raises(ValueError, match=r"\.lock is a link"):
        run.save(folder, 2)
    (folder / ".lock").unlink()
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    (folder / ".saving-step_00000009").symlink_to(elsewhere)
    (folder / ".deleting-file").write_text("no folder")
    run.save(folder, 2)
    assert (elsewhere / "file").read_text() == (folder.parent / "precious").read_text() == "precious"
    assert [path.name for path in folder.glob(".*-*")] == []
    other = folder.parent / "other"
    other.mkdir()
    (other / "step_00000003").symlink_to(checkpoint.latest(folder))
    with pytest.raises(ValueError, match="step_00000003 is a link, followed only where it is named itself"):
        checkpoint.find(other)
    assert checkpoint.load(other / "step_00000003", *run.both).step == 2


@pytest.mark.parametrize(("model", "experts", "said"), [
    ({"num_layers": 10**9}, None, "of another model than its manifest names"),
    ({"hidden_size": 10**9}, None, "of another model"),
    ({"sequence_length": 10**12}, None, "of another model"),
    ({}, {"num_experts": 10**9, "k": 1, "balance": "none", "weight": 0.0}, "of another model"),
    ({"num_layers": "1"}, None, "names a model that cannot be made"),
    ({"__class__": "x"}, None, "names a model that cannot be made"),
    ({}, [1], "names a model that cannot be made"),
    ({"vocab_size": 255}, None, "has a vocabulary of 255"),
])
def test_a_model_that_the_files_do_not_hold_is_not_made(folder, model, experts, said, capsys):
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "vocab_size": 256, "sequence_length": 4, **model}
    rewrite(checkpoint.latest(folder), extra={"model": sizes, "experts": experts})
    for words in (["evaluate", str(folder)], ["sample", str(folder), "hello"]):
        with pytest.raises(SystemExit):
            main(words)
        assert said in capsys.readouterr().err
