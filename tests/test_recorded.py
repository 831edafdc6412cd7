"""What pages say in words of recorded tables: a record of another day has to bear it out, or the words have to change."""

import pytest

from labkit import results


def rows(lab, name):
    """{first column: row} of a recorded table."""
    table = results.recorded(lab, name, "nvidia-h200").table
    return {row[table["columns"][0]]: row for row in table["rows"]}


def count(text):
    """The first number of "3 of 200"."""
    return int(text.split(" of ")[0])


def test_05_stable_headers_and_nvrtc_are_as_quick_as_the_page_says():
    cold = {way: row["cold, s"] for way, row in rows("05_jit_builds", "ladder").items()}
    slowest = cold["load(), torch/extension.h in the .cu"]
    assert cold["load(), stable ABI"] <= 0.05 * slowest
    assert max(cold["CuPy RawModule"], cold["torch.cuda._compile_kernel"]) <= 0.01 * slowest
    assert cold["load(), stable ABI"] <= 0.1 * cold["nvcc by hand, setup.py"]  # C6: nine tenths are saved


def test_05_a_wheel_runs_under_another_torch_than_built_it():
    table = results.recorded("05_jit_builds", "wheels", "nvidia-h200").table
    built, runs, *_, outcome = table["columns"]
    torches = [(row[built].split()[1].rstrip(","), row[runs].split()[1].rstrip(","), row[outcome]) for row in table["rows"]]
    assert {outcome for *_, outcome in torches} == {"right"}
    assert any(by != under for by, under, _ in torches) and any(by == under for by, under, _ in torches)


def test_05_labkit_goes_on_after_every_fault():
    assert all(row["once mended"] == "works" for row in rows("05_jit_builds", "faults_labkit").values())


def test_07_every_fault_is_found_and_one_allclose_passes_more_than_half():
    found = rows("07_verify_and_benchmark", "kills").values()
    assert len(found) >= 15 and all(row["found by"] != "not found" for row in found)
    assert sum(row["one allclose"] == "passes" for row in found) > len(found) / 2
    assert {row["one allclose"] for name, row in rows("07_verify_and_benchmark", "kills").items()
            if name in ("ignores strides", "keeps its output for the next call")} == {"fails"}


def test_07_bench_is_within_three_per_cent_of_nvbench():
    differences = [row["difference, %"] for row in rows("07_verify_and_benchmark", "nvbench").values()]
    assert len(differences) >= 6 and max(map(abs, differences)) <= 3


def test_07_two_runs_are_alike_and_rounding_moves_the_loss_as_far_as_a_fault():
    off = {name: abs(row["difference, %"]) for name, row in rows("07_verify_and_benchmark", "learning").items()}
    assert off["F.gelu, once more"] <= 0.1
    right = max(off["ours"], off["the second gradient lacks a term"])
    assert max(off["erf for tanh"], off["a factor of the gradient wrong"]) <= 1.5 * right


def test_08_a_missing_barrier_is_wrong_nearly_always_or_nearly_never():
    table = rows("08_sync_pitfalls", "missing_barrier")
    assert count(table["32 threads a block"]["wrong, many blocks"]) == 0
    assert count(table["1024 threads a block"]["wrong, same input"]) < count(table["1024 threads a block"]["wrong, new input"])
    counted = [count(row[column]) for row in table.values() for column in ("wrong, same input", "wrong, new input",
                                                                          "wrong, many blocks")]
    if any(10 < n < 990 for n in counted):
        pytest.fail("C11 in book/08 says that no row is rare")


def test_08_trace_and_racecheck_agree_on_every_race_and_on_every_kernel_without_a_fault():
    races = clean = 0
    for name in ("barriers", "warps", "blocks"):
        kinds = rows("08_sync_pitfalls", f"{name}_agreement")
        for kind in ("faults, a race in shared memory", "faults, none there", "kernels without a fault"):
            assert kinds[kind]["trace sees a race"] == kinds[kind]["racecheck sees one"]
        seen = kinds["faults, a race in shared memory"]
        assert seen["there are"] == seen["racecheck ended in"] == seen["racecheck sees one"]
        races += seen["there are"]
        clean += kinds["kernels without a fault"]["racecheck ended in"]
    assert (races, clean) == (5, 7)  # in words on the page


def test_08_what_is_mended_is_never_wrong():
    for name in ("barriers_twins", "warps_twins", "blocks_twins"):
        assert {count(row[column]) for row in rows("08_sync_pitfalls", name).values()
                for column in ("few blocks", "many blocks", "wrong orders")} == {0}
    for name, mended in (("streams", ("wait_stream", "record_stream")),
                         ("host", ("read after synchronize", "overwritten after the event"))):
        table = rows("08_sync_pitfalls", name)
        assert {table[what]["stale of 50"] for what in mended} == {0}
        assert all(row["stale of 50"] > 0 for what, row in table.items() if what not in mended)


def test_08_without_volatile_a_load_comes_before_the_store_that_it_needs():
    accesses = [row["no barrier inside a warp"] for row in rows("08_sync_pitfalls", "last_warp").values()]
    assert accesses[2].startswith("LDS") and "+0x40]" in accesses[2] and accesses[3].startswith("STS")
    table = rows("08_sync_pitfalls", "warps")
    assert count(table["no barrier inside a warp"]["many blocks"]) > 0 == count(table["the same, volatile"]["many blocks"])
    assert rows("08_sync_pitfalls", "blocks")["a wait for all blocks"]["many blocks"] == "hangs"
