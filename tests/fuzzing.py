"""Random calls of the operators: what an operator claims, what it does not, and gradients in any layout.

A call is a few plain values, so that one that fails can be written into a test as it is printed.
"""

import contextlib
import math
from typing import NamedTuple

import hypothesis
import torch
from hypothesis import strategies as st

from labkit import references
from labkit.cases import draw_inputs, unwritten
from labkit.references import shape_of

ELEMENTWISE = ("copy", "gelu", "geometry")  # any shape and strides; the others take contiguous matrices
MATRICES = ("transpose", "row_sum", "stencil", "fold", "softmax", "total", "add_norm")
NAMES = ELEMENTWISE + MATRICES
ELEMENTS = 8400  # of a tensor at most: also a row that is too long for the registers of a block


class Layout(NamedTuple):
    """How a tensor lies in memory. The first three have an entry a dimension; further ones do no harm."""

    order: tuple[int, ...]  # the dimensions, the outermost first, by rank of these numbers
    steps: tuple[int, ...]  # how many elements of memory a step along the dimension takes, beside what lies within it
    expanded: tuple[bool, ...]  # stride 0
    offset: int  # elements of memory before the first
    negated: bool  # memory holds the opposite, as that of a conjugate's imaginary part does


class Call(NamedTuple):
    """A call of a mode of an operator. `layouts` are of the inputs in turn, `gradients` of what flows back to the outputs."""

    version: int
    mode: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    layouts: tuple[Layout, ...]
    gradients: tuple[Layout | None, ...]  # None: no gradient comes to this output
    options: dict
    out_offset: int
    seed: int


def laid_out(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A view of new memory that has these values in this layout, and NaN in the gaps; of expanded dimensions the first."""
    strides, expanded, inside = [0] * values.dim(), layout.expanded[:values.dim()], 1
    for d in sorted(range(values.dim()), key=lambda d: layout.order[d], reverse=True):
        if not expanded[d]:
            strides[d] = inside * layout.steps[d]
            inside *= values.shape[d] * layout.steps[d] if values.shape[d] > 1 else 1
    memory = torch.full((layout.offset + max(inside, 1),), math.nan, dtype=values.dtype, device=values.device)
    view = memory.as_strided(values.shape, strides, layout.offset)
    own = tuple(slice(0, 1) if e else slice(None) for e in expanded)
    view[own] = -values[own] if layout.negated else values[own]
    return torch._neg_view(view) if layout.negated else view


def contiguous(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """What is left of a layout where only contiguous tensors are taken: the offset, and strides that are never used."""
    steps = tuple(1 if size > 1 else step for size, step in zip(shape, layout.steps))
    return Layout(tuple(range(len(shape))), steps, (False,) * len(shape), layout.offset, layout.negated)


def inputs_of(op, call: Call) -> list[torch.Tensor]:
    """The call's inputs, numbers as `labkit.check` draws them."""
    drawn = draw_inputs(op.reference, call.mode, call.dtype, op.device, {"shape": call.shape}, call.seed)
    return [laid_out(t, layout) for t, layout in zip(drawn, call.layouts)]


def gradients_of(returned, call: Call) -> list[torch.Tensor | None]:
    """What flows back to these outputs: numbers in [-2, 2], in the call's layouts."""
    generator = torch.Generator().manual_seed(call.seed + 1)
    numbers = [torch.randn(t.shape, generator=generator, dtype=torch.float64).clamp(-2, 2).to(t.dtype).to(t.device)
               for t in returned]
    return [None if layout is None else laid_out(t, layout) for t, layout in zip(numbers, call.gradients)]


# -- what is drawn ------------------------------------------------------------------------------------------

def layouts(dims: int, negated: bool) -> st.SearchStrategy[Layout]:
    plain = st.just((1,) * dims), st.just((False,) * dims)
    return st.builds(Layout, st.permutations(range(dims)).map(tuple), plain[0] | tuples(st.integers(1, 3), dims),
                     plain[1] | st.just((True,) * dims) | tuples(st.booleans(), dims), st.integers(0, 9),
                     st.booleans() if negated else st.just(False))


def tuples(element, count):
    return st.tuples(*[element] * count)


def sizes_of(reference, dimension: int) -> st.SearchStrategy[int]:
    """0, 1 and others, and one off each of those that the reference has cases of."""
    near = {case["shape"][dimension] + off for case in reference.CASES if len(case["shape"]) > dimension for off in (-1, 0, 1)}
    largest = max(near) - 1
    return st.integers(0, min(largest, 40)) | st.sampled_from(sorted(n for n in near if 0 <= n <= min(largest, ELEMENTS)))


def shapes(name: str, reference) -> st.SearchStrategy[tuple[int, ...]]:
    def smaller(shape):  # what is too large keeps its last dimensions
        room, kept = ELEMENTS, []
        for size in reversed(shape):
            kept.append(min(size, room))
            room //= max(kept[-1], 1)
        return tuple(reversed(kept))

    if name in MATRICES:
        return st.tuples(sizes_of(reference, 0), sizes_of(reference, 1)).map(smaller)
    return st.tuples(sizes_of(reference, 0)) | st.lists(st.integers(0, 9), max_size=5).map(tuple).map(smaller)


@st.composite
def calls(draw, op, mode: str | None = None) -> Call:
    """A call of a mode, of any unless named; its inputs are as the operator claims them."""
    reference, versions = op.reference, sorted(op.versions)
    mode = mode or draw(st.sampled_from(sorted(reference.MODES)))
    names, out_names, _ = reference.MODES[mode]
    shape = draw(shapes(op.name, reference))
    of_inputs = []
    for name in names:
        its_shape = shape_of(reference, name, shape)
        layout = draw(layouts(len(its_shape), negated=False))
        of_inputs.append(layout if op.name in ELEMENTWISE else contiguous(layout, its_shape))
    of_gradients = draw(st.tuples(*[layouts(max(len(shape), 2), negated=True)] * len(out_names)))
    left_out = draw(st.integers(0, 2 * len(out_names))) if len(out_names) > 1 else len(out_names)
    options = {"gelu": st.sampled_from(["input", "derivative"]).map(lambda save: {"save": save}),
               "geometry": st.integers(1, 1024).map(lambda threads: {"threads": threads})}.get(op.name, st.just({}))
    return Call(draw(st.sampled_from(versions)), mode, draw(st.sampled_from(reference.DTYPES)), shape, tuple(of_inputs),
                tuple(None if k == left_out else g for k, g in enumerate(of_gradients)), draw(options),
                draw(st.integers(0, 1)), draw(st.integers(0, 2**31)))


# -- what is not claimed ------------------------------------------------------------------------------------

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHER_DTYPES = tuple(sorted({t for t in vars(torch).values() if isinstance(t, torch.dtype)} - {*FLOATS}, key=str))


def of_dtype(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of t's shape in any dtype: memory of that type, where nothing is converted to it."""
    for make in (lambda: t.to(dtype), lambda: torch.empty(t.shape, dtype=dtype, device=t.device)):
        with contextlib.suppress(RuntimeError):  # NotImplementedError is one
            return make()
    hypothesis.reject()  # the device has none


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    return torch.stack([t, t], -1)[..., 0]


# What an operator is given in the place of a tensor, whatever the others are.
NEVER = {
    "another dtype": of_dtype,
    "sparse": lambda t, _: t.cpu().to_sparse().to(t.device),
    "compressed": lambda t, _: t.cpu().reshape(1, -1).to_sparse_csr().to(t.device),
    "nested": lambda t, _: torch.nested.nested_tensor([torch.atleast_1d(t)]),
    "nothing": lambda t, _: None,
    "a number": lambda t, _: 1.0,
    "a list": lambda t, _: t.tolist(),
    "an array": lambda t, _: t.double().cpu().numpy(),
}
# And where it does not fit the others, or is to be a matrix.
UNFIT = {
    "one more": lambda t, _: torch.cat([t.reshape(-1), t.new_ones(1)]),
    "a dimension more": lambda t, _: t[None],
    "another float": lambda t, _: t.to(FLOATS[FLOATS.index(t.dtype) - 1]),
    "gaps": lambda t, _: with_gaps(t),
}


class Fault(NamedTuple):
    """What is wrong with a call: the argument at `place` (outputs after inputs), or the version."""

    kind: str
    place: int
    dtype: torch.dtype
    version: int


@st.composite
def faults(draw, op, call: Call) -> Fault:
    """Something that makes a claimed call an unclaimed one."""
    names, out_names, _ = op.reference.MODES[call.mode]
    place = draw(st.integers(0, len(names) + len(out_names) - 1))
    kinds = [*NEVER, "version"]
    others = OTHER_DTYPES if op.name != "total" else (*OTHER_DTYPES, torch.float16, torch.bfloat16)
    is_output = place >= len(names)
    if op.name in MATRICES or len(names) > 1 or is_output:
        kinds += ["one more", "a dimension more"]
    if len(names) > 1 or is_output:
        kinds += ["another float"]
    if op.name in MATRICES or is_output:
        kinds += ["gaps"]
    return Fault(draw(st.sampled_from(kinds)), place, draw(st.sampled_from(others)),
                 draw(st.integers(-2**65, 0) | st.integers(op.latest + 1, 2**65) | st.sampled_from(
                     [high + n for high in (2**8, 2**16, 2**32) for n in op.versions])))


def outputs_of(op, call: Call) -> list[torch.Tensor]:
    """Memory that the mode may write its outputs to, for inputs without gaps."""
    inputs = [t.contiguous() for t in inputs_of(op, call)]
    exact = references.exact_outputs(op.reference, call.mode, inputs)
    models = references.models(op.reference, call.mode, inputs, [t.shape for t in exact])
    return [unwritten(t.numel(), t.dtype, t.device).view(t.shape) for t in models]
