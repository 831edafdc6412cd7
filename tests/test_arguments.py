"""Mistakes in the arguments of labkit's calls: each is told with the argument's name, the value seen and what to give."""

import pytest
import torch

import labkit

TEXT = "it has to be a list, also of one"
LOADED = "it has to be what labkit.load returns"
GELU = labkit.Code("gelu", 4, "v4:: Forward< bfloat16")


def x():
    return (torch.ones(3),)


MISTAKES = {
    "load, name": (lambda: labkit.load(3), TypeError,
                   "name is 3; it has to be the name of a folder of kernels/, such as 'gelu'"),
    "load, version": (lambda: labkit.load("copy", [1, 2]), ValueError, r"version is \[1, 2\]; copy.cu lists 1, 2, 3, 4, 5"),
    "load, True": (lambda: labkit.load("copy", True), ValueError, "version is True; copy.cu lists 1"),
    "load, flags": (lambda: labkit.load("copy", cuda_flags="-g"), TypeError,
                    "cuda_flags is '-g'; it has to be a list, such as"),
    "show, version": (lambda: labkit.show("copy", "3"), ValueError, "version is '3'; copy.cu lists 1"),
    "compile_cubin, arch": (lambda: labkit.compile_cubin("copy", 1, arch=90), ValueError,
                            "arch is 90; it is a name such as 'sm_90'"),
    "owners, dtype": (lambda: labkit.owners("copy", dtype="bfloat16"), ValueError,
                      "dtype is 'bfloat16'; it has to be a torch.dtype, one of torch.float16, torch.bfloat16"),
    "schedules, seeds": (lambda: labkit.schedules("copy", seeds=-1), ValueError,
                         "schedules: seeds is -1; it has to be a whole number, at least 0"),
    "check, seed": (lambda: labkit.check(labkit.load("copy"), seed="x"), ValueError,
                    "check: seed is 'x'; it has to be a whole"),
    "bench, variants": (lambda: labkit.bench("b", {}, x, bytes=12), ValueError,
                        "bench: variants is empty; it has to name at least one function"),
    "bench, a function": (lambda: labkit.bench("b", torch.sin, x, bytes=12), TypeError,
                          "bench: variants is .*sin.*; it has to be a dict, {label: function}"),
    "bench, no function": (lambda: labkit.bench("b", {"a": 3}, x, bytes=12), TypeError,
                           r"bench: variants\['a'\] is 3; it has to be a function"),
    "bench, inputs": (lambda: labkit.bench("b", {"a": torch.sin}, torch.ones(3), bytes=12), TypeError,
                      "bench: inputs is a Tensor; it has to be a function that makes them anew"),
    "bench, bytes": (lambda: labkit.bench("b", {"a": torch.sin}, x, bytes="12"), ValueError,
                     "bench: bytes is '12'; it has to be"),
    "ulp, dtypes": (lambda: labkit.ulp("u", {"a": torch.sin}, torch.sin, "t", dtypes="float16"), TypeError,
                    f"ulp: dtypes is 'float16'; {TEXT}"),
    "ulp, drawn": (lambda: labkit.ulp("u", {"a": torch.sin}, torch.sin, "t", drawn=("b",)), ValueError,
                   "ulp: drawn has 'b'; the variants are a"),
    "traffic, x": (lambda: labkit.traffic("t", {"a": torch.sin}, 3, "t"), TypeError, "traffic: x is 3; it has to be a tensor"),
    "counters, operator": (lambda: labkit.counters("c", "gelu", "forward", 4096, "float32", "t"), TypeError,
                           f"counters: operator is 'gelu'; {LOADED}"),
    "geometry, operator": (lambda: labkit.geometry("g", labkit.load("copy"), 4096, "float32"), TypeError,
                           r'it has to be labkit.load\("geometry"\)'),
    "captured, operator": (lambda: labkit.captured("c", "gelu"), TypeError, f"captured: operator is 'gelu'; {LOADED}"),
    "anatomy, operator": (lambda: labkit.anatomy("a", "gelu"), TypeError, f"anatomy: operator is 'gelu'; {LOADED}"),
    "accumulated, row_sum": (lambda: labkit.accumulated("a", "row_sum"), TypeError,
                             "accumulated: row_sum is 'row_sum'; it has"),
    "under_autocast, gelu": (lambda: labkit.under_autocast("u", "gelu"), TypeError,
                             "under_autocast: gelu is 'gelu'; it has to"),
    "scaled_steps, gelu": (lambda: labkit.scaled_steps("s", "gelu"), TypeError, "scaled_steps: gelu is 'gelu'; it has to be"),
    "timing_mistakes, gelu": (lambda: labkit.timing_mistakes("t", "gelu"), TypeError,
                              "timing_mistakes: gelu is 'gelu'; it has"),
    "sass, kernel": (lambda: labkit.sass("gelu", 4, 4), TypeError,
                     "sass: kernel is 4; it has to be words of its name, such as"),
    "sass_counts, kernels": (lambda: labkit.sass_counts("s", {"a": "gelu"}, "t"), TypeError,
                             r"sass_counts: kernels\['a'\] is 'gelu'; it has to be a labkit.Code"),
    "ptxas_words, code": (lambda: labkit.ptxas_words("p", "gelu", 32), TypeError, "code is 'gelu'; it has to be a labkit.Code"),
    "ptxas_words, registers": (lambda: labkit.ptxas_words("p", GELU, "32"), ValueError,
                               "ptxas_words: registers is '32'; it has to be a whole number, at least 1"),
    "runs_on, archs": (lambda: labkit.runs_on("r", "sm_80"), TypeError, f"runs_on: archs is 'sm_80'; {TEXT}"),
    "runs_on, none": (lambda: labkit.runs_on("r", []), ValueError, "runs_on: archs is empty; it has to hold at least one"),
    "try_wheels, wheels": (lambda: labkit.try_wheels("t", "a.whl"), TypeError, f"try_wheels: wheels is 'a.whl'; {TEXT}"),
    "try_wheels, a wheel": (lambda: labkit.try_wheels("t", ["no.whl"]), FileNotFoundError,
                            "try_wheels: there is no wheel no.whl"),
    "mutant, new": (lambda: labkit.mutant("copy", 1, "x", 3), TypeError, "old is 'x' and new is 3; both have to be texts"),
    "plant, faults": (lambda: labkit.plant("p", {"a": "gelu"}, "t"), TypeError,
                      r"plant: faults\['a'\] is 'gelu'; it has to be a Fault"),
    "kills, faults": (lambda: labkit.kills("k", {}, "t"), ValueError,
                      "kills: faults is empty; it has to name at least one Shipped"),
    "shared_accesses, faults": (lambda: labkit.shared_accesses("s", {}, "k", "t"), ValueError,
                                "shared_accesses: faults is empty"),
    "trains_alike, variants": (lambda: labkit.trains_alike({}, lambda: None, "t"), ValueError,
                               "trains_alike: variants is empty"),
    "learning, variants": (lambda: labkit.learning("l", {"a": 3}, lambda: None, "t"), TypeError,
                           r"learning: variants\['a'\] is 3; it has to be a function or a labkit.Compiled"),
}


@pytest.fixture(scope="module", autouse=True)
def copy():
    """Built before a session is looked at: a build is noted in it."""
    labkit.load("copy")


@pytest.mark.parametrize("call, error, says", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_with_the_argument_the_value_and_what_to_give(session, call, error, says):
    with pytest.raises(error, match=says):
        call()
    assert not session().tables and not session().notes
