"""A loaded operator: its function, its registered torch operators, its versions and its reference."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import warnings
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator

import torch

from labkit import REPOSITORY, machine, poison, source_files
from labkit.references import dtype_of, shape_of


_kernels: ContextVar[Path | None] = ContextVar("kernels", default=None)  # a thread's own


def kernels() -> Path:
    """The folder that operators live in: kernels/ of the repository, or what LABKIT_KERNELS names (a copy to edit)."""
    return _kernels.get() or Path(os.environ.get("LABKIT_KERNELS") or REPOSITORY / "kernels")


@contextlib.contextmanager
def kernels_of(folder: Path) -> Iterator[None]:
    """Within, operators come from another folder, in this thread."""
    before = _kernels.set(folder)
    try:
        yield
    finally:
        _kernels.reset(before)


@dataclass(frozen=True)
class Operator:
    """What `labkit.load` returns. Call it like the function it is: `gelu(x)`.

    ops: the registered operators, torch.ops.<namespace>. Of each mode, such as "forward", there are two:
        ops.forward(x, version) returns new tensors, ops.forward_out(x, y, version) writes into given ones. No gradient passes
        through the latter, and a graph that has saved y notices that it is another. In eager mode y also loses the history that
        it had; under torch.compile, or a TorchDispatchMode, it keeps it, so pass a y without one.
    function: what a call runs. It refuses forward mode, which the registered operators would let pass without a tangent; but
        torch.compile looks once, where the function that it compiles first calls the operator: of forward mode that begins
        after that, in the same function, the tangents are 0.
    versions: {1: "one element a thread", ...}, those that this build holds, from the header of the .cu file.
    source, library: the .cu file and what was built from it.
    reference: the module kernels/<name>/reference.py. rivals: the module rivals.py, what it is measured against.
    """

    name: str
    backend: str
    device: torch.device
    namespace: str
    versions: dict[int, str] = field(hash=False)  # a dict has none
    source: Path
    library: Path
    function: Callable[..., Any]
    reference: ModuleType
    rivals: ModuleType

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Operator:
        return self  # a build in memory, which nothing changes: a model that holds it can be copied

    def __reduce__(self) -> tuple:
        """Pickled by name, as functions are: who reads it loads the operator anew, from the kernels that are there then."""
        one_alone = len(self.versions) < len(listed_versions(source_files.text(self.source)))
        backend = None if self.backend == machine.backend() else self.backend
        return unpickled, (self.name, self.latest if one_alone else None, backend, self.namespace)

    @property
    def ops(self) -> Any:
        return getattr(torch.ops, self.namespace)

    @property
    def latest(self) -> int:
        return max(self.versions)

    @poison.told
    def first_launch(self) -> None:
        """Runs the first mode of the latest version on one element and waits for it."""
        mode, (inputs, _, _) = next(iter(self.reference.MODES.items()))
        shape = [1] * len(self.reference.CASES[0]["shape"])  # an operator on matrices takes no vector
        tensors = [torch.ones(shape_of(self.reference, name, shape), device=self.device,
                              dtype=dtype_of(self.reference, name, self.reference.DTYPES[0])) for name in inputs]
        getattr(self.ops, mode)(*tensors, self.latest)
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def unpickled(name: str, version: int | None, backend: str | None, namespace: str) -> Operator:
    """The operator for one that was pickled, in whatever process; a RuntimeWarning says when it is another build.

    namespace: what the pickled one was registered as. Raises what `labkit.load` raises.
    """
    from labkit.build import load  # which imports this module

    operator = load(name, version, backend=backend)
    if operator.namespace != namespace:
        warnings.warn(f"{name} was pickled as the build {namespace} and is now {operator.namespace}: its sources, flags, the "
                      "compiler, torch or the backend are others", RuntimeWarning, stacklevel=2)
    return operator


def source_path(name: str) -> Path:
    """The .cu file of an operator; FileNotFoundError says which operators there are, TypeError that `name` is no text."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}; it has to be the name of a folder of kernels/, such as 'gelu'")
    path = kernels() / name / f"{name}.cu"
    if not path.is_file():
        known = sorted(p.parent.name for p in kernels().glob("*/*.cu") if p.stem == p.parent.name)
        raise FileNotFoundError(f"no operator {name!r}: {path} is not there (operators: {', '.join(known) or 'none'})")
    return path


def listed_versions(source: str) -> dict[int, str]:
    """The versions that the header comment of a .cu file lists: {1: "one element a thread", ...}."""
    header = re.match(r"(?://[^\n]*\n)+", source)
    return {int(number): text for number, text in
            re.findall(r"^//\s+v(\d+)\s+(.+)$", header.group(0) if header else "", re.MULTILINE)}


def check_listed(name: str, source: str, versions: dict[int, str]) -> None:
    """ValueError, with what its header has to look like, for a .cu file, `source`, that lists no version."""
    if not versions:
        raise ValueError(f"{name}: {source} lists none of its versions. It has to begin with lines of // comments, from its "
                         "first line on and without a blank one between, and each version has one of them: //   v1  one "
                         "element a thread")


def check_version(name: str, version: Any, source: str, versions: dict[int, str]) -> None:
    """ValueError for a version that a .cu file, `source`, does not list."""
    check_listed(name, source, versions)
    if type(version) is not int or version not in versions:
        raise ValueError(f"{name}: version is {version!r}; {source} lists {', '.join(map(str, versions))}")


def python_part(name: str, part: str) -> ModuleType:
    """Runs kernels/<name>/<part>.py as it is on disk now and returns it as a module."""
    path = kernels() / name / f"{part}.py"
    spec = importlib.util.spec_from_file_location(f"kernels_{name}_{part}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile and pickle look a function's module up there
    spec.loader.exec_module(module)
    return module
