"""What chapter 09 says in words of its recorded tables; see test_recorded.py."""

import pytest
from recorded_tables import by_first_column, rows, tables_of_all_runs


def medians(name):
    return {variant: row["median_us"] for variant, row in rows("09_profiling_80_20", name).items()}


def test_09_the_top_rungs_reach_nine_tenths_of_a_copy_and_lose_to_nobody():
    for name, top, rivals in (("softmax", "v6", ("torch.softmax", "torch.compile", "Triton")),
                              ("softmax_short", "v6", ("torch.softmax", "torch.compile", "Triton")),
                              ("add_norm", "v5", ("F.layer_norm", "torch.compile", "Triton"))):
        us = medians(name)
        assert rows("09_profiling_80_20", name)[top]["of_limit"] >= 0.9
        assert all(us[top] <= 1.02 * us[rival] for rival in rivals)
    for name, top in (("softmax", "v6"), ("add_norm", "v5")):  # "Triton ties"
        assert medians(name)["Triton"] <= 1.05 * medians(name)[top]


def test_07_a_call_costs_bench_some_microseconds_more_than_its_bytes():
    """Of a copy and of one twice as large: chapter 07 says so, and no lab of its own times two copies."""
    fixed = 2 * medians("softmax")["copy"] - medians("add_norm")["copy"]
    assert 3 <= fixed <= 9


def test_09_two_rungs_of_softmax_made_it_slower_and_the_last_reaches_the_limit():
    us, profiled = medians("softmax"), rows("09_profiling_80_20", "softmax_limits")
    assert us["v2"] > 1.03 * us["v1"] and us["v5"] > 1.03 * us["v4"]
    assert profiled["softmax v2"]["µs"] > 1.03 * profiled["softmax v1"]["µs"]
    gains = [us[f"v{k - 1}"] / us[f"v{k}"] for k in range(2, 7)]
    assert sorted(gains)[-2] == gains[-1] and sorted(gains)[-1] == gains[1]
    limits = [row["limit"] for row in profiled.values()]
    assert limits == ["memory", *["instructions"] * 5, "memory", "instructions"]
    moved = [row["DRAM, MB"] for name, row in profiled.items() if name != "copy v5"]
    assert max(moved) <= 1.03 * min(moved)  # "the same MB"
    why = rows("09_profiling_80_20", "softmax_limits_why")
    before, after = why["softmax v4"], why["softmax v5"]
    assert after["registers"] < before["registers"] and after["occupancy, %"] > before["occupancy, %"] + 10
    more = after["instructions an element"] / before["instructions an element"]
    assert more > 1.05 and us["v5"] / us["v4"] == pytest.approx(more, abs=0.03)  # "about as much"
    assert profiled["softmax v5"]["µs"] / profiled["softmax v4"]["µs"] == pytest.approx(more, abs=0.03)
    assert us["v4"] > 1.1 * us["v6"]
    copied = profiled["copy v5"]["DRAM, MB"] / profiled["copy v5"]["µs"] * 1e3  # GB/s
    ceiling = rows("09_profiling_80_20", "roofline_ceilings")["a copy"]["GB/s"]
    assert 0.9 <= copied / ceiling <= 0.97  # "some per cent less"


def test_09_of_long_rows_one_pass_less_gains_and_the_others_are_faster():
    us = medians("softmax_long")
    assert max(us["torch.softmax"], us["torch.compile"]) < us["v2"] < 0.97 * us["v1"]


def test_09_of_short_rows_the_third_version_is_worse_than_the_first():
    us = medians("softmax_short")
    assert us["v3"] > 2 * us["v1"] and us["v5"] < us["v4"] / 10


def test_09_a_third_more_instructions_are_next_to_nothing_by_bench_and_a_little_by_nsight_compute():
    old, new = (rows("09_profiling_80_20", "add_norm")[version] for version in ("v3", "v4"))
    assert new["low_us"] <= old["high_us"] and old["low_us"] <= new["high_us"]
    assert new["median_us"] <= 1.01 * old["median_us"]
    profiled = rows("09_profiling_80_20", "add_norm_limits")
    before, after = (profiled[f"add_norm {version}"] for version in ("v3", "v4"))
    for run in map(by_first_column, tables_of_all_runs("09_profiling_80_20", "add_norm_limits")):
        assert run["add_norm v3"]["µs"] < run["add_norm v4"]["µs"]  # "the slower one in every recorded run"
    why = rows("09_profiling_80_20", "add_norm_limits_why")
    issued = [why[f"add_norm {version}"]["instructions an element"] for version in ("v3", "v4")]
    assert after["µs"] <= 1.05 * before["µs"]
    assert 1.25 <= issued[1] / issued[0] <= 1.45 and abs(after["instructions, %"] - after["memory, %"]) <= 5
    assert why["add_norm v5"]["occupancy, %"] < why["add_norm v3"]["occupancy, %"]
    assert medians("add_norm")["v5"] <= 1.01 * medians("add_norm")["v3"]
    assert 1.15 <= medians("add_norm")["F.layer_norm"] / medians("add_norm")["v2"] <= 1.35  # "what the bytes predict"


def test_09_compiled_the_gradient_of_softmax_is_faster_than_ours_and_that_of_layer_norm_slower():
    us = medians("softmax_backward")
    assert us["torch.compile"] < min(us["v4"], us["v6"], us["add"]) and abs(us["v6"] / us["add"] - 1) <= 0.03
    why = rows("09_profiling_80_20", "backward_limits_why")
    ours, compiled = why["softmax v6 backward"], why["softmax compiled_backward backward"]
    assert compiled["registers"] < ours["registers"] and compiled["occupancy, %"] > ours["occupancy, %"]
    assert 45 <= compiled["L1 had, %"] <= 55 and ours["L1 had, %"] <= 1  # each input loaded twice
    us = medians("add_norm_backward")
    assert us["v5"] < us["torch.compile"] < us["F.layer_norm"]


def test_09_a_quarter_of_the_kernels_makes_four_fifths_and_the_multiplications_go():
    summary = {row["what"]: row["value"] for row in rows("09_profiling_80_20", "hot_composed_summary").values()}
    assert 20 <= summary["that is, of the distinct kernels, %"] <= 30 and summary["the GPU idles, % of a step"] <= 5
    composed, fused = (rows("09_profiling_80_20", name) for name in ("hot_composed", "hot_fused"))
    assert list(composed)[:2] == ["mul", "add"] and "mul" not in fused
    assert fused["add"]["calls a step"] < composed["add"]["calls a step"] / 2
    assert {"direct_copy", "bfloat16_copy", "v4::kernel"} <= set(fused)


def test_09_the_derivative_kept_saves_more_instructions_than_the_article_says_and_no_memory():
    names = "gelu v7 backward", "gelu v7 backward_saved"
    again, kept = (rows("09_profiling_80_20", "kept_why")[name]["instructions an element"] for name in names)
    assert kept <= 0.7 * again
    again, kept = (rows("09_profiling_80_20", "kept")[name]["memory, %"] for name in names)
    assert abs(kept - again) <= 2
