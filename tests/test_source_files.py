"""Sources as readers' machines have them: files that editors and systems put beside them, marks, other encodings."""

import shutil

import pytest
import torch

import labkit
from labkit import REPOSITORY, build, operator, source_files, sources

APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        \xff\xfe"


@pytest.fixture
def kernels(tmp_path, monkeypatch, own_builds):
    """A copy of kernels/ that a test may edit, with what editors and systems leave in such a folder."""
    copy = tmp_path / "kernels"
    source_files.copy(operator.kernels(), copy)
    litter(copy)
    monkeypatch.setenv("LABKIT_KERNELS", str(copy))
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    return copy


def litter(kernels):
    for folder in (kernels / "copy", kernels / "include"):
        (folder / ".#copy.cu").symlink_to("me@machine.4711:1700000000")  # Emacs, of a file that is being edited
        (folder / "#copy.cu#").write_text("half a line")
        (folder / ".copy.cu.swp").write_bytes(b"b0VIM 9.0\xff")
        (folder / "copy.cu~").write_text("the text before")
        (folder / "._copy.cu").write_bytes(APPLE_DOUBLE)
        (folder / "._launch.cuh").write_bytes(APPLE_DOUBLE)
        (folder / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1\xff")
        (folder / ".ipynb_checkpoints").mkdir()
        (folder / ".ipynb_checkpoints" / "copy-checkpoint.cu").write_text("the text before")


def works(version=None):
    x = torch.arange(5.0)
    return torch.equal(labkit.load("copy", version)(x), x)


def test_what_editors_and_systems_put_beside_a_source_is_no_source(kernels):
    flags = sum(build.flags("host"), [])
    with operator.kernels_of(REPOSITORY / "kernels"):
        without = build.fingerprint("copy", "host", flags)
    assert build.fingerprint("copy", "host", flags) == without
    assert works(1) and works() and labkit.trace("copy", 1, show=False).findings == []
    mutant = labkit.mutant("copy", 1, "if (i < n) y[i] = x[i];", "if (i < n) y[i] = x[0];")
    assert not torch.equal(mutant(torch.arange(5.0)), torch.arange(5.0))


def test_it_makes_no_lab_look_stale(monkeypatch, tmp_path):
    before = sources.sources_hash("03_memory_hierarchy")
    for folder in ("kernels", "labs"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    litter(tmp_path / "kernels")
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    assert sources.sources_hash("03_memory_hierarchy") == before


def test_lines_that_end_as_windows_has_them_and_a_mark_at_the_beginning_change_nothing(kernels):
    for path in (kernels / "copy" / "copy.cu", kernels / "include" / "launch.cuh"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert works(2) and works() and labkit.trace("copy", 2, show=False).findings == []
    labkit.show("copy", version=2, diff=1)


def test_a_source_in_another_encoding_is_named_with_its_line(kernels):
    path = kernels / "copy" / "copy.cu"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n// f\xfcr\n", 1))
    for call in (lambda: labkit.load("copy"), lambda: labkit.show("copy", version=1)):
        with pytest.raises(ValueError, match=r"copy\.cu:2: the file is not in UTF-8 from here on\. Save it in that encoding"):
            call()
