"""Every registered function of every operator: what it refuses, in which words, and what autograd is told of its outputs."""

import pytest
import torch
from fuzzing import NAMES

import labkit
from labkit import references
from labkit.cases import draw_inputs, unwritten, usual_shape


@pytest.fixture(params=NAMES)
def op(request):
    return labkit.load(request.param)


def registered(op, shape=None):
    """Each mode's operators, into new and into given outputs; the tensors that each takes, by name; the numbers after them.

    shape: of the case; the usual one unless given.
    """
    case = {"shape": shape or usual_shape(op.reference)}
    for mode, (names, out_names, _) in op.reference.MODES.items():
        inputs = draw_inputs(op.reference, mode, torch.float32, op.device, case, 0)
        models = references.models(op.reference, mode, inputs,
                                   [t.shape for t in references.exact_outputs(op.reference, mode, inputs)])
        outputs = [unwritten(t.numel(), t.dtype, t.device).view(t.shape) for t in models]
        yield getattr(op.ops, mode), dict(zip(names, inputs)), (op.latest,)
        yield getattr(op.ops, f"{mode}_out"), dict(zip((*names, *out_names), (*inputs, *outputs))), (op.latest,)
    if op.name == "geometry":
        x = torch.ones(8, device=op.device)
        yield op.ops.sweep, {"x": x}, (op.latest, 64)
        yield op.ops.sweep_out, {"x": x, "y": torch.empty_like(x)}, (op.latest, 64)
        yield op.ops.occupancy, {"x": x}, (op.latest, 64)


def test_in_the_place_of_any_tensor_none_and_types_without_a_name_in_the_stable_abi_are_refused(op):
    for function, tensors, numbers in registered(op):
        for name, t in tensors.items():
            with pytest.raises(RuntimeError, match=f"\\A{op.name}.*: `{name}` is None. Pass a tensor."):
                function(*(tensors | {name: None}).values(), *numbers)
            for dtype in (torch.bits8, torch.bits1x8, torch.uint4):
                strange = torch.empty(*t.shape, 2, dtype=dtype, device=t.device)[..., 0]  # with gaps: nothing is copied before
                with pytest.raises(RuntimeError, match=f"\\A{op.name}.*: `{name}` is another type; {op.name}.* takes float16"):
                    function(*(tensors | {name: strange}).values(), *numbers)


def test_tensors_of_which_one_is_on_meta_are_refused_and_all_of_them_there_give_shapes(op):
    for function, tensors, numbers in registered(op):
        if function.__name__ == "occupancy":
            continue  # it asks the GPU, and has no shapes
        for name in tensors if len(tensors) > 1 else ():
            for places in ({name}, {*tensors} - {name}):
                with pytest.raises(RuntimeError, match=f"{op.name}.* on .*meta.*Move (one to|them to one)"):
                    function(*(t.to("meta") if at in places else t for at, t in tensors.items()), *numbers)
        returned = function(*(t.to("meta") for t in tensors.values()), *numbers)
        assert all(t.is_meta for t in ([returned] if torch.is_tensor(returned) else returned or ()))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_other_types_are_refused_by_their_names(op):
    function, tensors, numbers = next(registered(op))
    (name, t), *_ = tensors.items()
    for dtype in (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
                  torch.uint64, torch.complex32, torch.complex64, torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn,
                  torch.float8_e5m2fnuz, torch.float8_e4m3fnuz):
        other, called = torch.zeros(t.shape, device=t.device).to(dtype), f"{dtype}".removeprefix("torch.")
        with pytest.raises(RuntimeError, match=f"\\A{op.name}: `{name}` is {called}; {op.name} takes"):
            function(*(tensors | {name: other}).values(), *numbers)


def test_a_version_that_is_not_there_is_named_before_anything_is_launched(op):
    nothing = [0] * len(usual_shape(op.reference))
    for function, tensors, (_, *numbers) in (*registered(op), *registered(op, nothing)):
        for version in (0, -1, op.latest + 1):
            with pytest.raises(RuntimeError, match=f"\\A{op.name}.*: `version` is {version}; there is no such version: "
                                                   "the comment at the top of the .cu file lists them"):
                function(*tensors.values(), version, *numbers)


def test_a_build_of_one_version_says_which_it_holds(op):
    one = labkit.load(op.name, op.latest)
    function, tensors, (_, *numbers) = next(registered(one))
    with pytest.raises(RuntimeError, match=f"`version` is 1; there is no such version: this build holds {op.latest} alone"):
        function(*tensors.values(), 1, *numbers)


def written(op):
    """(function, tensors, names of those that it writes, numbers) of those that write into given outputs."""
    for function, tensors, numbers in registered(op):
        schema = function.default._schema
        if outputs := [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]:
            yield function, tensors, outputs, numbers


def test_a_graph_notices_that_a_tensor_which_it_has_saved_is_overwritten(op):
    for function, tensors, outputs, numbers in written(op):
        for name in outputs:
            out = torch.zeros_like(tensors[name])
            w = torch.ones_like(out, requires_grad=True)
            y = (w * out).sum()  # saves it, for the gradient of w
            function(*(tensors | {name: out}).values(), *numbers)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()
        inputs = [t for name, t in tensors.items() if name not in outputs]
        before = [t._version for t in inputs]
        function(*tensors.values(), *numbers)
        assert [t._version for t in inputs] == before


def test_what_is_overwritten_has_no_gradient_to_pass_on(op):
    for function, tensors, outputs, numbers in written(op):
        for name in outputs:
            w = torch.ones_like(tensors[name], requires_grad=True)
            alone, base = w * 3, torch.stack([w, w]) * 3
            for out, whole in ((alone, alone), (base[0], base)):
                function(*(tensors | {name: out}).values(), *numbers)
                (grad,) = torch.autograd.grad(whole.sum(), w)
                assert torch.equal(grad, torch.full_like(w, 0 if whole is alone else 3))  # base[1] is as it was


def test_an_output_that_autograd_protects_is_refused_before_the_launch(op):
    for function, tensors, outputs, numbers in written(op):
        for name in outputs:
            leaf = torch.full_like(tensors[name], 7).requires_grad_()
            with torch.inference_mode():
                inferred = torch.full_like(tensors[name], 7)
            for out in (leaf, inferred):
                with pytest.raises(RuntimeError, match=f"\\A{op.name}.*: `{name}` must not be overwritten: it is a leaf"):
                    function(*(tensors | {name: out}).values(), *numbers)
                assert (out == 7).all()
            with torch.no_grad():
                function(*(tensors | {name: leaf}).values(), *numbers)
            with torch.inference_mode():
                function(*(tensors | {name: inferred}).values(), *numbers)
            assert torch.equal(leaf, inferred) and not (leaf == 7).all()
