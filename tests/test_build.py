"""`labkit.load`: what counts as an edit, what is kept, what a compiler's error looks like. On the host backend."""

import multiprocessing
import os
import shutil
import time

import pytest
import torch

import labkit
from labkit import REPOSITORY, build, host, operator, toolchain


@pytest.fixture
def kernels(monkeypatch, own_builds):
    """A copy of kernels/ that a test may edit, built for the CPU into a folder of its own."""
    copy = own_builds.parent / "kernels"
    shutil.copytree(operator.kernels(), copy)
    with open(copy / "gelu" / "gelu.cu", "a") as source:
        source.write(f"// {copy}\n")  # no other test has loaded this one
    monkeypatch.setenv("LABKIT_KERNELS", str(copy))
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    return copy


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_build_folder_that_is_no_whole_path_is_the_same_from_every_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_BUILD", "elsewhere/builds")
    for folder in (REPOSITORY, REPOSITORY / "labs", tmp_path):
        monkeypatch.chdir(folder)
        assert build.build_root() == REPOSITORY / "elsewhere" / "builds"
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    assert build.build_root() == tmp_path


def test_an_edit_of_source_or_header_is_a_new_build_beside_the_old(kernels):
    x = torch.tensor([1.0])
    first = labkit.load("gelu", version=1)
    assert labkit.load("gelu", version=1) is first

    edit(kernels / "gelu" / "gelu.cu", "y = F(0.5) * x * (1 + t);", "y = F(0.5) * x * (1 + t) + 1;")
    second = labkit.load("gelu", version=1)
    assert second(x).item() == pytest.approx(first(x).item() + 1)

    edit(kernels / "include" / "element.cuh", "float to_compute(float v) { return v; }",
         "float to_compute(float v) { return v + 1; }")
    third = labkit.load("gelu", version=1)
    assert third(x).item() == pytest.approx(first(x + 1).item() + 1)
    assert len({op.namespace for op in (first, second, third)}) == 3


def test_builds_that_differ_in_the_kernel_share_a_binding_and_not_a_namespace(kernels):
    for kept in build.build_root().glob("binding-gelu-*.o"):
        kept.unlink()
    first = labkit.load("gelu", version=1)
    edit(kernels / "gelu" / "gelu.cu", "y = F(0.5) * x * (1 + t);", "y = F(0.5) * x * (1 + t) + 1;")
    second, traced = labkit.load("gelu", version=1), labkit.load("gelu", version=1, backend="trace")
    assert len(list(build.build_root().glob("binding-gelu-*.o"))) == 1
    for operator_ in (first, second, traced):
        text = operator_.library.read_bytes()
        assert operator_.namespace.encode() in text and b"gelu_xxxxxxxxxxxx" not in text

    edit(kernels / "include" / "torch_op.h", "is not strided", "has no strides")
    with pytest.raises(RuntimeError, match="`x` has no strides"):
        labkit.load("gelu", version=1).ops.forward(torch.ones(3).to_sparse(), 1)
    assert len(list(build.build_root().glob("binding-gelu-*.o"))) == 2
    edit(kernels / "include" / "vec.cuh", "#pragma once", "#pragma once\n// no header of the binding")
    labkit.load("gelu", version=1)
    assert len(list(build.build_root().glob("binding-gelu-*.o"))) == 2

    edit(kernels / "gelu" / "binding.cpp", "using torch::stable::Tensor;", "using torch::stable::Tensors;")
    with pytest.raises(build.BuildError, match=r"\A.*gelu/binding.cpp:7:.*Tensors"):
        labkit.load("gelu", version=1)


@pytest.mark.skipif(not host.is_gcc("c++"), reason="c++ is not g++")
def test_a_header_that_is_parsed_once_serves_all_versions_and_leaves_their_code_as_it_is(kernels, monkeypatch):
    for parsed in build.build_root().glob("parsed-*/"):
        shutil.rmtree(parsed)
    first, second = (labkit.load("copy", version, rebuild=True) for version in (1, 2))
    (made,) = build.build_root().glob("parsed-*/cuda_host.h.gch")
    monkeypatch.setattr(host, "parse_header", lambda *given: pytest.fail("parsed again"))
    labkit.load("copy", version=1, rebuild=True)
    made.unlink()
    monkeypatch.setattr(build, "_parsed_header", lambda options: [])
    without = labkit.load("copy", version=1, rebuild=True)
    code = [(operator_.library.parent / "kernel.o").read_bytes() for operator_ in (first, second, without)]
    assert code[0] == code[2] != code[1]


def test_kernels_and_shared_memory_may_stand_in_a_header_beside_the_source(kernels):
    text = (kernels / "row_sum" / "row_sum.cu").read_text()
    begin, end = text.index("namespace v3 {"), text.index("}  // namespace v3\n") + len("}  // namespace v3\n")
    (kernels / "row_sum" / "halves.cuh").write_text("#pragma once\n" + text[begin:end])
    (kernels / "row_sum" / "row_sum.cu").write_text(text[:begin] + '#include "halves.cuh"\n' + text[end:])
    labkit.check(labkit.load("row_sum", version=3), dtypes=[torch.float32])
    found = labkit.trace("row_sum", version=3, size=(2, 300), dtype=torch.float32, show=False)
    assert found.findings == [] and found.total("reads", shared=True).requests > 0
    assert any(access.line.startswith("halves.cuh:") for access in found.accesses if access.shared)


def test_a_backend_that_is_not_there_is_refused(kernels):
    with pytest.raises(ValueError, match="backend is 'gpu'; it takes 'cuda', 'host' or 'trace'"):
        labkit.load("gelu", backend="gpu")
    with pytest.raises(ValueError, match="there is no GPU with nvcc here"):  # the fixture forces the host
        labkit.load("gelu", backend="cuda")


def test_edited_python_parts_take_effect(kernels):
    labkit.load("gelu", version=1)
    edit(kernels / "gelu" / "op.py", "gelu: save is", "gelu: save was")
    edit(kernels / "gelu" / "reference.py", "SPREAD, LARGEST = 2.5, 8.0", "SPREAD, LARGEST = 1.0, 8.0")
    gelu = labkit.load("gelu", version=1)
    with pytest.raises(ValueError, match="save was"):
        gelu(torch.ones(1), save="")
    assert gelu.reference.SPREAD == 1.0


def test_a_kept_build_is_loaded_without_a_compiler(kernels, monkeypatch, capsys):
    labkit.load("gelu", version=1)
    # another process, since a library registers its operators once
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        said, seconds = pool.apply(_load_without_compiler, (str(build.build_root()),))
    assert "reused, built" in said and seconds < 5


def _load_without_compiler(root):
    import contextlib
    import io

    os.environ["MAX_JOBS"] = "0"  # ninja would refuse
    os.environ["LABKIT_BUILD"] = root
    said, start = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(said):
        operator = labkit.load("gelu", version=1)
        assert operator(torch.ones(3)).shape == (3,)
    return said.getvalue(), time.perf_counter() - start


def test_what_a_killed_build_left_does_not_stop_the_next(kernels):
    key = build.fingerprint("gelu", "host", sum(build.flags("host", 1), []), 0)
    left = build.build_root() / "gelu" / f"host-{key}.1.work"
    left.mkdir(parents=True)
    (left / "lock").touch()  # torch's own lock file, which it would wait for
    (left / f"gelu_{key}.so").write_bytes(b"half a library")
    assert labkit.load("gelu", version=1)(torch.ones(2)).shape == (2,)
    assert not left.exists()


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def test_an_object_or_a_parsed_header_that_is_damaged_is_made_again(kernels):
    again = dict(rebuild=True, launch=False)  # this process may have loaded it
    labkit.load("copy", 1, backend="trace", **again)
    kept = [*build.build_root().glob("binding-copy-*.o"), *build.build_root().glob("tracer-*.o"),
            *build.build_root().glob("parsed-*/cuda_host.h.gch")]
    assert len(kept) >= (3 if host.is_gcc("c++") else 2)
    for path in kept:
        halve(path)
    for backend in ("host", "trace"):
        assert labkit.load("copy", 2, backend=backend, **again).ops.forward(torch.ones(2), 2).tolist() == [1, 1]


def test_a_mutants_sources_that_are_damaged_are_written_again(kernels):
    fault = "copy", 1, "if (i < n)", "if (i <= n)"
    first = labkit.mutant(*fault, backend="host")
    halve(first.source)
    (first.source.parent / "reference.py").unlink()
    assert labkit.mutant(*fault, backend="host") is first and "i <= n" in first.source.read_text()


def test_damage_that_is_seen_by_the_linker_alone_is_told_with_a_remedy(kernels):
    labkit.load("copy", version=1, rebuild=True)
    for kept in build.build_root().glob("binding-copy-*.o"):
        kept.write_bytes(bytes(kept.stat().st_size))  # as some file systems leave it after a power failure
    with pytest.raises(build.BuildError, match=r"(?s)binding.o: file not recognized.*To mend it: .*python3 -m labkit clean"):
        labkit.load("copy", version=1, rebuild=True)


WITHOUT_VERSIONS = {
    "a blank line first": lambda text: "\n" + text, "a licence first": lambda text: "/* mine */\n" + text,
    "an #include first": lambda text: "#include <math.h>\n" + text, "no header": lambda text: text[text.index("#include"):],
    "versions of another name": lambda text: text.replace("//   v", "//   version "), "nothing": lambda text: "",
}


@pytest.mark.parametrize("change", WITHOUT_VERSIONS)
def test_a_source_that_lists_no_version_is_told_so_wherever_it_is_named_and_nothing_is_compiled(kernels, monkeypatch, change):
    source = kernels / "copy" / "copy.cu"
    source.write_text(WITHOUT_VERSIONS[change](source.read_text()))
    monkeypatch.setattr(build, "_build", lambda *given: pytest.fail("compiled"))
    case = labkit.Case("copy", 1, (8,))
    for call in (lambda: labkit.load("copy"), lambda: labkit.load("copy", version=1), lambda: labkit.trace("copy", version=1),
                 lambda: labkit.trace("copy"), lambda: labkit.show("copy", 1), lambda: labkit.compile_cubin("copy", 1),
                 lambda: labkit.mutant("copy", 1, "i < n", "i <= n"), lambda: labkit.agreement("copy", [case], "Counts")):
        with pytest.raises(ValueError, match=r"copy.cu lists none of its versions.* begin with lines of // comments.*//   v1 "):
            call()


def test_a_compile_error_names_file_and_line_first_and_can_be_mended(kernels):
    source = kernels / "gelu" / "gelu.cu"
    line = source.read_text().splitlines().index("namespace v1 {") + 2
    edit(source, "namespace v1 {", "namespace v1 {\nthis_is_no_type broken;")
    with pytest.raises(build.BuildError) as failed:
        labkit.load("gelu", version=1)
    first = str(failed.value).splitlines()[0]
    assert f"gelu.cu:{line}" in first and "this_is_no_type" in first
    edit(source, "this_is_no_type broken;", "")
    assert labkit.load("gelu", version=1)(torch.ones(2)).shape == (2,)


def test_a_kernel_that_the_host_backend_refuses_is_named_with_its_line(kernels):
    source = kernels / "gelu" / "gelu.cu"
    line = "    if (i < n) one_element<Mode, T>(a, i);"
    edit(source, line, f"    __nanosleep(10);\n{line}")
    line = next(i for i, text in enumerate(source.read_text().splitlines(), 1) if "__nanosleep" in text)
    with pytest.raises(RuntimeError, match=rf"gelu.cu:{line}.*__nanosleep"):
        labkit.load("gelu", version=1)


def test_unknown_names_and_versions_say_what_there_is():
    with pytest.raises(FileNotFoundError, match="no operator 'relu'.*operators: .*gelu"):
        labkit.load("relu")
    with pytest.raises(ValueError, match="version is 99; gelu.cu lists 1, 2"):
        labkit.load("gelu", version=99)


def test_rebuild_compiles_again_and_is_reported(kernels, capsys):
    first = labkit.load("gelu", version=7)
    second = labkit.load("gelu", version=7, rebuild=True)
    assert first.namespace != second.namespace and list(second.versions) == [7]
    assert capsys.readouterr().out.count("version 7 built for the CPU") == 2


def test_building_with_the_environment_not_activated(kernels, monkeypatch):
    # ninja lies beside the running Python, not on the PATH of a shell that did not activate the environment.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert labkit.load("gelu", version=2)(torch.ones(2)).shape == (2,)
    assert os.environ["PATH"] == "/usr/bin:/bin"


# -- compilers that fail ------------------------------------------------------------------------------------

@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """compiler(script): compiles with a program of these lines, and returns what the error says."""
    def fails(script):
        (tmp_path / "c++").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "c++").chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
        with pytest.raises(RuntimeError) as failed:
            host.compile_object(tmp_path / "a.cpp", [], tmp_path / "a.o")
        return build.first_error(str(failed.value), tmp_path / "log")

    return fails


def test_a_compiler_that_is_killed_is_told_from_one_that_refuses(compiler):
    told = compiler("kill -9 $$")
    assert "c++: fatal: ended by signal 9\nTo mend it: close other programs, or let one compiler run at a time" in told
    assert "fatal: it ended with 3 and said nothing" in compiler("exit 3")


def test_a_compiler_that_makes_nothing_is_told_as_such(kernels, compiler):
    told = compiler(":")
    assert "c++: fatal: it reported success and made no a.o\nTo mend it: name one C++ compiler in CXX, such as" in told
    for backend in ("host", "trace"):
        with pytest.raises(build.BuildError, match="compiler: .*/c\\+\\+; it reports success and makes nothing. To mend it: "):
            labkit.load("copy", version=1, backend=backend)


def test_a_compilers_error_is_found_whatever_the_readers_language(compiler, monkeypatch):
    monkeypatch.setenv("LANGUAGE", "fr")
    monkeypatch.setenv("LC_ALL", "C")
    script = r"""[ "$LANGUAGE" = en ] && printf 'a.cpp:3: error: \342\200\230x\342\200\231 \377\n'; exit 1"""
    assert compiler(script).startswith("a.cpp:3: error: ‘x’ ")
    with toolchain.tools_on_path():
        assert os.environ["LANGUAGE"] == "en"
    assert os.environ["LANGUAGE"] == "fr"


def test_torch_is_told_of_a_toolkit_by_a_path_that_does_not_fall_apart(tmp_path, monkeypatch):
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    for folder in ("cuda-13", "Kern el ä"):
        monkeypatch.setattr(build.machine, "cuda_home", lambda: tmp_path / folder)
        (tmp_path / folder).mkdir()
        toolchain.point_torch_to_cuda()
        assert os.path.samefile(cpp_extension.CUDA_HOME, tmp_path / folder) and " " not in cpp_extension.CUDA_HOME


@pytest.mark.parametrize("free, asked, jobs", [(0.4, None, 1), (3.5, None, 3), (1000, None, 4), (None, None, 2), (0.4, "6", 6),
                                               (3.5, "many", 3), (3.5, "-1", 3), (3.5, "²", 3), (3.5, "0", 1)])
def test_as_many_compilers_run_as_memory_and_cores_allow_or_as_asked(monkeypatch, free, asked, jobs):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(build.machine, "free_memory", lambda: free)
    monkeypatch.setenv("MAX_JOBS", asked) if asked else monkeypatch.delenv("MAX_JOBS", raising=False)
    with toolchain.tools_on_path():  # what ninja takes
        assert os.environ["MAX_JOBS"] == str(jobs)
    assert os.environ.get("MAX_JOBS") == asked


def test_what_the_system_refuses_is_told_with_a_remedy_and_can_be_mended(tmp_path, monkeypatch, kernels):
    with monkeypatch.context() as full:
        full.setattr(build, "whole_or_not_at_all", lambda made: (_ for _ in ()).throw(OSError(28, os.strerror(28), str(made))))
        with pytest.raises(build.BuildError, match=r"gelu: \[Errno 28\] No space left .*\nTo mend it: free some disk"):
            labkit.load("gelu", version=5)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path / "file" / "root"))
    with pytest.raises(build.BuildError, match="Not a directory"):
        labkit.load("gelu", version=5)


def test_a_library_that_lacks_a_symbol_is_told_with_the_symbol(kernels):
    with open(kernels / "copy" / "binding.cpp", "a") as binding:
        binding.write("void nowhere();\nstatic int called = (nowhere(), 0);\n")
    with pytest.raises(build.BuildError, match=r"\Acopy: .*undefined symbol: \w*nowhere"):
        labkit.load("copy", version=1)


@pytest.mark.parametrize("name", ["CC", "CXX"])
def test_an_empty_compilers_variable_is_as_good_as_none(monkeypatch, name):
    monkeypatch.setenv(name, "")
    with toolchain.tools_on_path():
        assert os.environ[name] in ("cc", "c++")
    assert os.environ[name] == ""


def test_a_home_that_no_shell_has_put_in_is_the_home_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LABKIT_BUILD", "~/builds")
    assert build.build_root() == tmp_path / "builds"
