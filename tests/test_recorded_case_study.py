"""What chapter 10 says in words of its recorded tables; see test_recorded.py."""

import pytest
from recorded_tables import recorded, rows

LAB = "10_case_study"


def step():
    return rows(LAB, "step")


def test_10_the_fused_step_is_at_least_1_3_times_as_fast_in_at_most_0_65_of_the_memory_and_no_worse_than_f_gelu():
    composed, fused, native = (step()[name] for name in ("composed", "fused", "F.gelu"))
    assert composed["ms a step"] >= 1.30 * fused["ms a step"] and fused["memory, GiB"] <= 0.65 * composed["memory, GiB"]
    assert fused["ms a step"] <= native["ms a step"] and fused["memory, GiB"] <= native["memory, GiB"]
    assert native["10%, ms"] <= fused["90%, ms"]  # "differ by less than their spread"


def test_10_fusing_the_forward_pass_alone_gains_no_time_and_all_the_memory():
    composed, forward, fused = (step()[name] for name in ("composed", "fused forward", "fused"))
    assert composed["ms a step"] <= forward["ms a step"] <= 1.05 * composed["ms a step"]
    assert forward["memory, GiB"] == fused["memory, GiB"]
    parts = rows(LAB, "step_kernels")
    in_passes = {part: sum(row["ms"] for name, row in parts.items() if name.endswith(f"activation {part}"))
                 for part in ("forward", "backward")}
    assert in_passes["forward"] < in_passes["backward"]


def test_10_the_compiled_model_is_the_fastest_and_no_gelu_is_the_least_of_the_others():
    ms = {name: row["ms a step"] for name, row in step().items()}
    assert min(ms, key=ms.get) == "torch.compile of the model"
    assert ms["no activation"] == min(value for name, value in ms.items() if name != "torch.compile of the model")


def test_10_the_two_ways_to_measure_the_share_agree():
    for row in step().values():
        if row["its share, %"] is not None:
            assert abs(row["its share, %"] - row["share by leaving it out, %"]) <= 1.5


def test_10_composed_gelu_keeps_six_tensors_of_its_inputs_size_and_the_layers_difference_is_that_of_the_step():
    kept = rows(LAB, "kept")
    assert kept["composed"]["for the activation"] == 6 * 8
    assert {kept[name]["for the activation"] for name in kept if name not in ("composed", "no activation")} == {8}
    column = next(name for name in kept["composed"] if name.startswith("MiB a layer"))
    layers = 24 * (kept["composed"][column] - kept["fused"][column]) / 1024
    assert step()["composed"]["memory, GiB"] - step()["fused"]["memory, GiB"] == pytest.approx(layers, rel=0.02)


def test_10_the_articles_point_lies_above_amdahls_curve_and_ours_below_and_close():
    theirs, ours = (rows(LAB, "article_cap")[model] for model in ("the article", "here"))
    assert theirs["times as fast"] > 1.3 * theirs["cap"] and theirs["share that this needs, %"] > 2 * theirs["share, %"]
    assert 0.9 * ours["cap"] <= ours["times as fast"] <= ours["cap"]
    both = rows(LAB, "article")["forward and gradient fused"]
    assert 10 <= both["here, saved, %"] < both["article, saved, %"]
    assert both["here, GiB saved, %"] > both["article, GB saved, %"]
    half = rows(LAB, "article")["forward fused"]
    assert half["here, saved, %"] <= 0 < 15 < half["article, saved, %"]


def test_10_no_form_ends_much_farther_from_composed_gelu_than_composed_gelu_from_itself():
    losses = rows(LAB, "losses")
    again = abs(losses["composed, again"]["difference, %"])
    ends = [row["difference, %"] for row in losses.values()]
    assert all(abs(end) <= again + 0.05 for end in ends)  # "about as far"
    assert min(ends) < 0 < max(ends)  # "some above and some below"
    assert all(row["largest at a step, %"] <= 5 for row in losses.values())
    apart = [max(map(abs, at_a_step)) for at_a_step in zip(*recorded(LAB, "losses_apart")["series"].values(), strict=True)]
    assert len(apart) == 60 and max(apart[:6]) < 0.2 * max(apart[30:])  # "least where the loss falls steeply"
    (loss,) = recorded(LAB, "losses_curves")["series"].values()
    assert loss[5] < 0.6 * loss[0] and loss[30] < 1.1 * loss[59]


def test_10_two_processes_differ_in_the_last_bits_and_a_killed_run_in_none():
    same = recorded(LAB, "same")["rows"]
    assert {(row["through"], row["precision"]) for row in same} == {
        ("gloo", "float64"), ("NCCL", "float64"), ("NCCL", "bfloat16")}
    assert all(row["largest difference"] <= 1e-13 for row in same if row["precision"] == "float64")
    assert {row["steps compared"] for row in same if row["precision"] == "bfloat16"} == {20}
    killed = rows(LAB, "killed")
    assert killed["the end"]["losses that differ"] == 0 and killed["the end"]["steps done twice"] > 0
    assert all(row["went on from"] > 0 and row["went on from"] % 10 == 0 for row in killed.values() if row["went on from"])


def test_10_ddp_hides_nearly_all_that_it_sends_and_fsdp2_saves_memory_and_waits_for_the_host():
    scaled = {(row["shared by"], row["scaling"]): row for row in recorded(LAB, "scaling")["rows"]}
    alone, weak, strong = scaled["one alone", "–"], scaled["ddp", "weak"], scaled["ddp", "strong"]
    waits = rows(LAB, "scaling_waits")
    waits = {(way, kind): waits[f"{way}, 2 GPUs, {kind}"] for way in ("ddp", "fsdp") for kind in ("weak", "strong")}
    assert weak["of GPUs × one, %"] > 90 and waits["ddp", "weak"]["behind other kernels, %"] > 80
    assert waits["ddp", "weak"]["alone, ms"] + 2 < weak["ms a step"] - alone["ms a step"] < 10  # "a few milliseconds"
    assert waits["ddp", "strong"]["alone, ms"] > waits["ddp", "weak"]["alone, ms"]  # "more of it shows"
    assert strong["of GPUs × one, %"] < weak["of GPUs × one, %"]
    (total,) = recorded(LAB, "scaling_sum")["rows"]
    assert total["ms"] < 0.1 * alone["ms a step"]  # "little beside a step"
    assert scaled["fsdp", "strong"]["ms a step"] > alone["ms a step"]  # "slower than one GPU"
    for kind in ("weak", "strong"):
        assert scaled["fsdp", kind]["ms a step"] > 1.2 * scaled["ddp", kind]["ms a step"]
        assert scaled["fsdp", kind]["memory, GiB"] < 0.9 * scaled["ddp", kind]["memory, GiB"]
        assert waits["fsdp", kind]["no kernel runs, ms"] > 5 * waits["ddp", kind]["no kernel runs, ms"]
        assert waits["fsdp", kind]["NCCL runs, ms"] > 2 * total["ms"]  # "longer than all bytes take"
        starts = [[float(ms) for ms in scaled[way, kind]["starts, ms"].split("–")] for way in ("ddp", "fsdp")]
        assert starts[1][1] - starts[1][0] > 5 * (starts[0][1] - starts[0][0])  # "starts differ more from each other"


def test_10_the_longest_gaps_of_an_fsdp2_step_come_after_its_last_reduce_scatter():
    lanes = {lane["name"]: [(span["start"], span["end"]) for span in lane["spans"]]
             for lane in recorded(LAB, "scaling_fsdp")["lanes"]}
    busy_until, gaps = 0.0, []
    for start, end in sorted(span for spans in lanes.values() for span in spans):
        gaps.append((start - busy_until, busy_until))
        busy_until = max(busy_until, end)
    longest = sorted(gaps, reverse=True)[:3]
    assert all(since >= lanes["ReduceScatter"][-1][1] for _, since in longest)
    assert sum(length for length, _ in gaps if length > 0) > 2 * sum(length for length, _ in longest)  # short gaps count too
