"""What pages say in words of recorded tables: a record of another day has to bear it out, or the words have to change."""

import pytest
import torch
from recorded_tables import by_first_column, count, recorded, rows, tables_of_all_runs

from labkit import REPOSITORY, results


def test_02_elements_apart_come_near_nine_tenths_of_the_copy_and_consecutive_ones_are_slowed_by_their_stores_in_both_types():
    apart, *consecutive = (recorded("02_grid_block_thread", f"sweep_{sort}")["cells"] for sort in
                           ("bfloat16_apart", "bfloat16_consecutive", "float32_consecutive"))
    copy = {row["name"]: row["gbps"] for row in recorded("02_grid_block_thread", "sweep_bfloat16")["rows"]}["copy"]
    assert 0.85 < min(row[-1] for row in apart[1:]) / copy and max(map(max, apart)) / copy < 0.95
    for cells in consecutive:  # eight elements a thread, at 128 threads a block and more
        assert all(row[3] < 0.5 * row[2] for row in cells[2:])
    bfloat16, float32 = (cells[2] for cells in consecutive)  # 128 threads: as fast as blocks start, it doubles
    assert bfloat16[2] > 1.9 * bfloat16[1] > 1.9**2 * bfloat16[0]
    assert float32[2] < 1.5 * float32[1] and float32[1] > 1.9 * float32[0]


def test_03_one_load_a_thread_is_up_to_a_quarter_faster_than_four_until_the_memory_is_full():
    figure = recorded("03_memory_hierarchy", "in_flight")
    one, four = figure["series"]["1 load a thread"], figure["series"]["4 loads a thread"]
    gains = [a / b for a, b in zip(one, four) if a and b]
    assert 1.2 < max(gains) < 1.3 and min(gains) >= 1 and gains[-1] < 1.05


def test_04_version_5_uses_more_than_four_fifths_of_the_issue_slots():
    assert 80 < rows("04_fused_kernel", "counters")["v5"]["issue slots used, %"] < 90


def test_04_the_sigmoid_forms_gradient_is_not_a_number_from_where_the_page_says():
    """As kernels/gelu/rivals_triton.py has it, in float32."""
    every = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = every[every.isfinite()]
    s = 1 / (1 + torch.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    lost = x[(s * (1 + x * (1 - s) * (1.5957691216057308 * (1 + 3 * 0.044715 * x * x)))).isnan()]
    assert -1.3e13 < lost[lost < 0].max() < -1e13 and lost[lost > 0].min() > 1e19


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


def test_06_only_version_7_has_the_limits_and_no_kernel_an_edge_in_float16():
    edges = rows("06_mixed_precision", "edges")
    first = edges["float16: least x > 0 whose gradient is not finite"]
    assert isinstance(first["composed"], float) and first["composed, pow"] < first["composed"]
    assert {first[kernel] for kernel in ("F.gelu", "v1", "v6", "v7")} == {"none"}
    far = edges["bfloat16: least x > 0 whose gradient is not finite"]
    assert far["v7"] == "none" and min(far["F.gelu"], far["v1"], far["v6"]) > 1e18
    assert edges["float16: gradient at 1, for 1e-8 from above"]["v7"] == 0
    assert edges["bfloat16: gradient at 1, for 1e-8 from above"]["v7"] == pytest.approx(1.083e-8, rel=2**-8)
    assert edges["float32: gelu(2^-130), denormal"]["v7"] == 2.0**-131
    for where, limit in (("result at -inf", 0), ("gradient at inf", 1), ("gradient at -inf", 0)):
        _, *others, v7 = edges[f"float16: {where}"].values()
        assert v7 == limit and set(others) == {"NaN"}
    for what in ("result", "gradient"):
        assert set(edges[f"float16: {what} at NaN"].values()) == {f"float16: {what} at NaN", "NaN"}


def test_06_a_narrow_sum_goes_wrong_in_long_rows_only():
    error = rows("06_mixed_precision", "sums_rows")
    for n, row in error.items():
        for kind in ("float16", "bfloat16"):
            narrow, wide = row[f"{kind}, sum in its own type"], row[f"{kind}, float32 sum"]
            assert wide < 0.4 and (narrow == wide if n <= 16384 else n > 65536 or narrow < 1.1 * wide)
    assert error[65536]["float16, sum in its own type"] > error[65536]["float16, float32 sum"]
    assert error[262144]["bfloat16, sum in its own type"] > 40
    off = {inputs: row["relative error"] for inputs, row in rows("06_mixed_precision", "matmul").items()}
    assert 100 * off["float32"] < off["tf32"] < 4 * off["float16"] and off["float16"] < 4 * off["tf32"]


def least_of_windows(batches):
    """The least mean loss, in nats, of one who knows how the text of sums is made, and sees a window of it and no more."""
    alphabet = "0123456789+=\n"
    lines = [f"{a}+{b}={a + b}\n" for a in range(10) for b in range(10)]
    shows = torch.nn.functional.one_hot(torch.tensor([alphabet.index(c) for c in "".join(lines)])).double()  # place x character
    ends = shows[:, -1]
    begins = ends.roll(1) / len(lines)
    losses = []
    for tokens, targets in batches:
        belief = shows[:, tokens[:, 0]].T  # of the places in the hundred lines, where the window may be
        for wanted in targets.T:
            belief = belief / belief.sum(1, keepdim=True)
            belief = (belief * (1 - ends)).roll(1, 1) + (belief @ ends)[:, None] * begins
            belief = belief * shows[:, wanted].T
            losses.append(-belief.sum(1).log().mean().item())
    return sum(losses) / len(losses)


def test_06_three_ways_can_add_and_one_does_not_know_the_characters(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))
    import sums

    curves = recorded("06_mixed_precision", "losses_curves")
    least = {point["label"]: point["y"] for point in curves["points"]}
    assert {label: round(loss, 4) for label, loss in sums.least_losses().items()}.items() <= least.items()
    steps = len(curves["x"]["values"])
    window = least_of_windows(sums.batches(steps, sequences=128, context=32, device="cpu")[-10:])
    assert least["can add"] < window < least["knows the layout"]
    losses = rows("06_mixed_precision", "losses")
    final = {way: row["final loss"] for way, row in losses.items()}
    careful = [final[way] for way in ("float32", "bfloat16 autocast", "float16 autocast, GradScaler")]
    assert window <= min(careful) and max(careful) <= 1.01 * window
    assert max(careful) < final["bfloat16 weights"] <= 1.02 * window  # a little above
    float32 = curves["series"]["float32"]
    assert max(after - before for before, after in zip(float32[100:], float32[112:])) > 0.1  # it jumps, too
    lost = losses["float16 autocast, no scaler"]
    assert lost["final loss"] > least["knows the characters"] and lost["not finite from step"] is None
    assert lost["gradients that are 0, %"] > 50 and losses["bfloat16 weights"]["gradients that are 0, %"] == 0
    assert losses["bfloat16 weights"]["weights that change, %"] < 50
    ended = losses["float16 weights"]
    assert ended["not finite from step"] == 1 and ended["first squares that are 0, %"] == 100


def test_06_autocast_leaves_the_operator_alone_and_the_scaler_skips_halves_and_doubles():
    autocast = rows("06_mixed_precision", "autocast")
    for called in ("ours", "F.gelu"):
        assert {autocast[f"{called}, under {kind}"]["kernel gets"] for kind in ("float16", "bfloat16")} == {"float32"}
    assert autocast["ours registered for float16, under bfloat16"]["kernel gets"] == "float16"
    assert {row["gradient of x"] for row in autocast.values()} == {"float32"}
    steps = rows("06_mixed_precision", "scaler")
    skipped = [step for step, row in steps.items() if not row["weights changed"]]
    assert skipped == [2] and not steps[2]["gradients finite"]
    assert 2 * steps[2]["scale after"] == steps[2]["scale before"] == steps[4]["scale after"]


def test_06_the_machine_code_is_what_the_page_says():
    sass = rows("06_mixed_precision", "sass")
    special = {variant.split(",")[0]: row["special functions"] for variant, row in sass.items()}
    assert special == {"v1": "EX2, RCP", "v4": "9 × EX2, 9 × RCP", "v6": "9 × TANH", "v7": "9 × EX2, 9 × RCP"}
    assert sass["v6, hardware tanh"]["fused (FFMA)"] < 0.2 * sass["v4, 16 bytes, tanhf"]["fused (FFMA)"]
    assert {row["global loads, bytes"] for variant, row in sass.items() if not variant.startswith("v1")} == {"16, 2"}
    cost = {build: row["registers"] for build, row in rows("06_mixed_precision", "separate_cost").items()}
    assert cost["two files, -dc"] > cost["one file"] == cost["two files, -dc -dlto"]
    *_, torchs = recorded("06_mixed_precision", "device_link")["rows"]
    assert torchs["way"] == "torch" and "undefined symbol: __cudaRegisterLinkedBinary_" in torchs["outcome"]


def test_06_flags_change_what_the_page_says():
    same = {kernel: {flag: row["same machine code"] for flag, row in rows("06_mixed_precision", f"flags_{kernel}").items()}
            for kernel in ("v1", "v7", "ratio")}
    for kernel in same.values():
        assert all(kernel[flag] for flag in ("--default-stream per-thread", "--ptxas-options=-v", "--fmad=true", "-O3",
                                             "without the two macros", "without -lineinfo"))
        assert not (kernel["-arch=sm_80"] or kernel["-ftz=true"] or kernel["--use_fast_math"])
    assert [same[kernel]["-dc"] for kernel in same] == [True, False, False]
    for flag in ("-prec-div=false", "-prec-sqrt=false"):
        assert [same[kernel][flag] for kernel in same] == [True, True, False]
    v1, v7, ratio = (rows("06_mixed_precision", f"flags_{kernel}") for kernel in same)
    assert v1["--use_fast_math"]["special functions"] == "TANH" and same["v7"]["-fmad=false"]
    assert {**v7["-ftz=true"], "flag": ""} == {**v7["--use_fast_math"], "flag": ""}
    assert v7["-dc"]["instructions"] == v7["as load() has it"]["instructions"]
    assert [ratio[flag]["calls"] for flag in ("as load() has it", "the last three", "--use_fast_math", "-dc")] == [2, 0, 0, 2]
    assert ratio["--use_fast_math"]["instructions"] < ratio["the last three"]["instructions"]
    assert ratio["-dc"]["instructions"] < ratio["as load() has it"]["instructions"]
    assert ratio["-dc"]["registers"] > ratio["as load() has it"]["registers"]


def test_06_what_flags_change_in_the_numbers_and_in_the_time():
    off = rows("06_mixed_precision", "flag_errors")
    growth = [off["v1, --use_fast_math"][kind] / off["v1"][kind] for kind in ("float32", "float16", "bfloat16")]
    assert growth == sorted(growth, reverse=True) and growth[-1] >= 1
    for kind in ("bfloat16", "float16", "float32"):
        assert len({row[kind] for flag, row in off.items() if flag.startswith("v7")}) == 1
    assert off["v1, -ftz=true"]["bfloat16, denormal"] > 100 * off["v1"]["bfloat16, denormal"]
    assert off["v1, -ftz=true"]["float16, denormal"] == off["v1"]["float16, denormal"]
    for kind in ("float32", "bfloat16"):
        times = rows("06_mixed_precision", f"flag_times_{kind}")
        assert times["v7"]["of_limit"] >= 0.95
        assert 0.98 <= times["v7"]["median_us"] / times["v7, --use_fast_math"]["median_us"] <= 1.02
    times = {name: row["median_us"] for name, row in rows("06_mixed_precision", "flag_times_repeated").items()}
    assert times["v4"] >= 2 * times["copy"] and times["v4"] >= 1.2 * times["v4, --use_fast_math"]


def test_06_sm_90a_runs_on_one_gpu_and_a_launch_without_a_stream_is_stale_and_in_no_graph():
    arch = rows("06_mixed_precision", "arch_flags")["-gencode arch=compute_90a,code=sm_90a"]
    assert (arch["runs"], arch["compiled by the driver"]) == ("9.0", "none")
    *none, named = recorded("06_mixed_precision", "default_stream")["rows"]
    assert all(row["on a side stream"] > 0 == row["on torch's default stream"] for row in none) and len(none) == 2
    assert all(row["captured in a graph"].startswith("not in the graph") for row in none)
    assert (named["on a side stream"], named["captured in a graph"]) == (0, "in the graph")


def test_06_a_step_in_16_bits_is_quicker_and_the_two_types_do_not_differ():
    steps = rows("06_mixed_precision", "step_types")
    low, high = zip(*(map(float, steps[way]["10–90%, ms"].split("–"))
                      for way in ("bfloat16 autocast", "float16 autocast, GradScaler")))
    assert max(low) < min(high) < steps["tf32"]["median, ms"] < steps["float32"]["median, ms"]


def test_07_every_fault_is_found_and_one_allclose_passes_more_than_half():
    found = rows("07_verify_and_benchmark", "kills").values()
    assert len(found) >= 15 and all(row["found by"] != "not found" for row in found)
    assert sum(row["one allclose"] == "passes" for row in found) > len(found) / 2
    assert {row["one allclose"] for name, row in rows("07_verify_and_benchmark", "kills").items()
            if name in ("ignores strides", "keeps its output for the next call")} == {"fails"}


def test_07_bench_is_within_three_per_cent_of_nvbench():
    differences = [row["difference, %"] for row in rows("07_verify_and_benchmark", "nvbench").values()]
    assert len(differences) >= 6 and max(map(abs, differences)) <= 3


def test_07_each_timing_mistake_misleads_the_way_the_page_says():
    mistakes = rows("07_verify_and_benchmark", "mistakes")
    gives, right = ({name: row[column] for name, row in mistakes.items()} for column in ("gives, µs", "right, µs"))
    article = "the article's way: the mean of 100"
    assert "new process" in mistakes[article]["why"] and gives[article] > 1.5 * gives["the same a second time"]
    for name in ("no synchronisation", "data left in L2", "zeros as input", "a fast wrong answer"):
        assert gives[name] < 0.9 * right[name]
    for name in ("the first call counted", "each call waited for, the mean", "the input made inside the loop"):
        assert gives[name] > 1.5 * right[name]
    idle, at_work = (words.split()[-2] for words in mistakes["another clock"]["why"].split("; here ")[1].split(", "))
    assert idle == at_work


def test_07_medians_of_bench_close_in_on_a_time_that_a_loop_that_waits_never_comes_near():
    off = {(row["timed by"], row["repeats"]): row for row in recorded("07_verify_and_benchmark", "mistakes_spread")["rows"]}
    first, *_, last = (off["bench", n]["median off by at most, %"] for n in (3, 10, 30, 100))
    assert last < first / 2 and last <= 1
    assert min(row["least median, µs"] for (by, _), row in off.items() if by != "bench") > (
        1.5 * off["bench", 100]["largest median, µs"])


def test_07_two_runs_are_alike_and_rounding_moves_the_loss_as_far_as_a_fault():
    off = {name: abs(row["difference, %"]) for name, row in rows("07_verify_and_benchmark", "learning").items()}
    assert off["F.gelu, once more"] <= 0.1
    right = max(off["ours"], off["the second gradient lacks a term"])
    assert max(off["erf for tanh"], off["a factor of the gradient wrong"]) <= 1.5 * right


def test_08_a_missing_barrier_is_wrong_with_many_blocks_and_with_one_as_it_happens():
    table = rows("08_sync_pitfalls", "missing_barrier")
    wrong = {column: {size.split()[0]: count(row[f"wrong, {column}"]) for size, row in table.items()}
             for column in ("same input", "new input", "many blocks")}
    assert wrong["many blocks"].pop("32") == 0 and set(wrong["many blocks"].values()) == {1000}
    one = wrong["new input"]
    assert one["32"] == min(one.values()) == 0 and one["1024"] > 990  # "from none to nearly all"
    assert wrong["same input"]["1024"] < one["1024"]


def test_07_the_articles_way_depends_on_the_host_and_bench_does_not():
    tables = list(map(by_first_column, tables_of_all_runs("07_verify_and_benchmark", "mistakes")))
    again, behind, launches = "the same a second time", "the same behind other work", "launches taken for the kernel"
    right = [table[again]["right, µs"] for table in tables]
    assert max(right) <= 1.03 * min(right)  # "the same each time"
    second = [table[again]["gives, µs"] / table[again]["right, µs"] for table in tables]
    assert min(second) < 1 and 1.4 < max(second) < 1.5  # "from less than the right time to nearly half as much again"
    *mostly, once = sorted(table[behind]["gives, µs"] / table[again]["gives, µs"] for table in tables)
    assert all(0.85 < ratio < 1.05 for ratio in mostly) and 1.8 < once < 2  # "about the same", "once nearly twice as much"
    beside = [table[launches]["gives, µs"] / table[again]["right, µs"] for table in tables]
    assert min(beside) < 0.9 and max(beside) > 1.2  # "on some of the hosts less than this kernel takes, on others more"


def test_07_what_a_loop_that_waits_times_beside_the_kernel_changed_in_the_course_of_one_run():
    off = [next(row["median off by at most, %"] for row in table["rows"]
                if (row["timed by"], row["repeats"]) == ("each call waited for", 100))
           for table in tables_of_all_runs("07_verify_and_benchmark", "mistakes_spread")]
    far = [percent for percent in off if percent >= 3]
    assert 1 < len(far) < len(off) and all(15 < percent < 20 for percent in far)  # "in some", "nearly a fifth", "by little"


def test_08_the_runs_of_the_lab_had_from_none_to_two_thirds_wrong_results_with_one_block_of_128_threads():
    wrong = [count(by_first_column(table)["128 threads a block"]["wrong, new input"])
             for table in tables_of_all_runs("08_sync_pitfalls", "missing_barrier")]
    assert min(wrong) == 0 and 640 <= max(wrong) <= 690


def test_08_trace_and_racecheck_agree_on_every_race_and_on_every_kernel_without_a_fault():
    races = clean = 0
    for name in ("barriers", "warps", "blocks"):
        kinds = rows("08_sync_pitfalls", f"{name}_agreement")
        with_race, other, right = (kinds[kind] for kind in ("faults with a race in shared memory", "other faults",
                                                            "kernels without a fault"))
        assert with_race["there are"] == with_race["trace sees a race"] == with_race["racecheck sees one"]
        assert right["there are"] == right["racecheck ended in"]
        assert right["trace sees a race"] == right["racecheck sees one"] == other["racecheck sees one"] == 0
        assert other["trace sees a race"] == (name == "barriers")  # a barrier for every other lane
        races += with_race["there are"]
        clean += right["there are"]
    assert (races, clean) == (5, 7)  # in words on the page
    divided = rows("08_sync_pitfalls", "barriers")["a barrier for every other lane"]
    assert "race" in divided["trace"] and divided["racecheck"] == "nothing" != divided["synccheck"]


def test_08_thirteen_of_fourteen_faults_are_found_without_a_gpu():
    seen = {what: row for name in ("barriers", "warps", "blocks") for what, row in rows("08_sync_pitfalls", name).items()}
    unseen = [what for what, row in seen.items() if row["trace"] == "nothing" and row["wrong orders"].startswith("0 of")]
    assert len(seen) == 14 and unseen == ["no fence"]


def test_08_lanes_that_do_not_take_part_do_no_harm_here_and_only_the_trace_tells():
    warps = rows("08_sync_pitfalls", "warps")
    assert "no end" in warps["a shuffle in a branch"]["racecheck"] and "no end" in warps["a shuffle in a branch"]["synccheck"]
    for what in ("a return before a shuffle", "a mask that leaves lanes out"):
        row = warps[what]
        assert row["racecheck"] == row["synccheck"] == "nothing" and "shuffle from an absent lane" in row["trace"]
        assert count(row["few blocks"]) == count(row["many blocks"]) == 0
    assert warps["a return before a shuffle"]["wrong orders"] == "8 of 8"


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


# -- 09 -----------------------------------------------------------------------------------------------------
