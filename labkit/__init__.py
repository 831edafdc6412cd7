"""The tools that the labs and the tests of "Kernel to Gradient" share.

    load(name)            an operator, built for this machine
    show(name, version)   the source of one version, or what it changes in another
    check(operator)       its outputs against the float64 reference, on every case
    bench(name, {...})    its time beside the alternatives, or the recorded time where there is no GPU
    ulp(name, {...})      its error over every 16-bit input
    traffic(name, {...})  the operators it runs, the bytes they move, what autograd keeps
    counters(name, op)    what the hardware counted for each version, by Nsight Compute
    what_limits(name, [Case])     what each kernel waits for and why, by Nsight Compute; with less where it is refused
    saved_report(name)    the same of a saved report, with no GPU
    roofline(name, [Case])        the rate of arithmetic that kernels reach, under what this GPU allows
    reuse(name, [Case])   how often a kernel loads what it needs only once
    levels(name)          latency and bandwidth of registers, shared memory, caches and memory
    in_flight(name)       bandwidth over the bytes that are on their way
    overlap(name, {...})  copies to the GPU and computation, in turn and side by side
    geometry(name, op)    its time over threads a block and elements a thread, as heat maps
    achieved(name, op)    the warp slots that it fills there, by Nsight Compute, and those that it could
    empty_blocks(m, n)    starts m blocks of n threads that do nothing, on a GPU
    sm_limits(name)       what one SM of this GPU holds at a time
    sass(name, version, kernel)   a kernel's machine code beside its source, by nvcc; no GPU needed
    sass_counts(name, {...})      what such code holds, counted: accesses by width, fused multiply-adds, special functions
    flags(name, Code)     what each flag of nvcc changes in such code; flag_errors: in the numbers; flag_times: in the time
    half_macros(name)     which expressions on 16-bit types compile under which macros
    ptxas_words(name, Code, n)    what ptxas -v says, word by word, and with n registers
    device_link(name)     what -dc asks for, step by step; separate_cost: what a call to another file costs
    default_stream(name)  what a launch that names no stream does behind a slow producer, and in a graph
    compile_cubin(name, version)  what it is read from: registers, spills, shared memory of each kernel, and ptxas's words
    trace(op, version)    every memory access of a kernel, counted and checked on the CPU: sectors, bank conflicts, races
    owners(op, version)   which thread of which block writes each element
    schedules(op)         its result with threads and blocks in other orders
    mutant(name, version, old, new)   an operator with a fault put into one version
    plant(name, {...})    several such faults, and what finds each of them
    investigate(name, {...})      faults of synchronisation, before every tool and on the GPU, beside the right kernels
    wrong_results(name, Fault, {...})  how often a faulty kernel gives a wrong result on the GPU
    shared_accesses(name, {...})  in which order its machine code loads from shared memory and stores there
    stale_reads(name, {...})  how often work on streams, or the CPU, reads what is not there yet; busy: a slow kernel
    kills(name, {...})    faults that people ship, and which of `check`'s checks finds each
    timing_mistakes(name, op)  ways to time it that mislead, each beside the right one
    against_nvbench(name) the times of `bench` beside those of NVBench
    learning(name, {...}) the loss of a small model with each variant, step by step
    agreement(name, ...)  the counts of `trace` beside those of the hardware
    hot(name, step)       where a function's time goes: which kernels and operators, and how few make most of it
    kernels(name, {...})  the kernels of one call on the GPU, one after another, and the gaps between them
    trains_alike({...})   whether a small model learns alike with each variant of an activation
    step_share(name, ...) an activation's share of a training step; share_over: in models of several sizes
    amdahl(name, ...)     what such a share allows, beside what was measured
    kept_a_layer(name, ...)  what autograd keeps of one layer of a model for its backward pass
    Compiled(activation)  a variant of those above: the whole model through torch.compile
    beside_the_article(name, rows)  the article's case study beside the reader's, and Amdahl's law on both
    same_losses(name, program, ...)  whether many processes, by DDP and FSDP2, train as one does
    survives(name, program, ...)  a training run that is killed twice, beside one that nobody disturbed
    scale(name, program, ...)  how much faster several GPUs train, and where they wait for each other
    anatomy(name, op)     the files and the commands of a build, word by word
    rebuilds(name)        after which changes a build is made again, by torch's load and by labkit's
    ladder(name)          from source to the first launch in ten ways, cold and warm
    stages(name)          what each stage of nvcc takes, with torch's headers and without
    captured(name, op)    launches one by one, and as a CUDA graph
    provoke(name)         what goes wrong around a build, provoked and mended
    wheel(name)           the operator as a package with its compiled libraries, which nobody has to compile
    try_wheels(name)      such packages installed and run with this Python and others, without a compiler
    arch_flags(name, [...])      what code a flag such as -arch=sm_80 makes, and which GPUs run it
    architectures(name, {...})   the GPUs that a binary holds code for
    runs_on(name, archs)  which GPU runs what was compiled for which, by the rule `compatible`, and tried
    formats(name)         what float32, tf32, float16, bfloat16 and fp8 can hold, and how far apart their numbers are
    at_the_edges(name, {...})  results and gradients where a type ends: overflow, denormals, infinities, NaN
    accumulated(name, op) the error of long sums in narrow and wide types, and of a kernel that adds in its own type
    matmul_errors(name)   the error of a matrix product in float32, tf32 and 16 bits, on a GPU
    under_autocast(name, op)  the types that a custom operator gets and returns inside torch.autocast
    scaled_steps(name, op)  what GradScaler does with a step that overflows
    loss_curves(name, ...)  a training run in float32, with autocast, and in 16 bits without care
    step_times(name, ...) a training step in float32, tf32 and with autocast, timed side by side
    exercise(name)        what an exercise asks, and the learner's file; grade: what is right in it; hint, solution
    ledger()              the article's claims on this GPU: readings and verdicts, from what it has recorded
    start(lab), record()  the frame of a lab: what machine this is; this run as a record in results/
    doctor()              what this machine has and what is wrong

An argument that cannot be raises TypeError or ValueError, which names it, the value seen and what it has to be.
Names are loaded when they are first used: the command line (`python -m labkit`) also runs before torch is installed.
"""

import importlib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

_HOME = {"load": "build", "show": "listing", "check": "checking", "bench": "timing", "ulp": "precision",
         "traffic": "counting", "counters": "hardware", "geometry": "sweeping", "achieved": "sweeping",
         "empty_blocks": "empty_grid",
         "sm_limits": "occupancy", "trace": "tracing", "owners": "ownership", "schedules": "ordering",
         "mutant": "mutants", "plant": "mutants", "Fault": "mutants", "kills": "killing", "Shipped": "killing",
         "timing_mistakes": "misleading", "against_nvbench": "nvbench_agreement", "learning": "learning_curves",
         "agreement": "gpu_counts", "Case": "gpu_counts", "Rival": "gpu_counts",
         "what_limits": "limiting", "saved_report": "limiting", "roofline": "rooflines",
         "reuse": "reloads", "levels": "memory", "in_flight": "memory", "overlap": "streams",
         "hot": "hot_spots", "kernels": "gpu_trace",
         "kept_a_layer": "keeping", "Compiled": "share", "beside_the_article": "article", "same_losses": "many_processes",
         "survives": "many_processes", "scale": "scaling_table",
         "trains_alike": "share", "step_share": "share", "share_over": "share", "amdahl": "share",
         "sass": "machine_code", "sass_counts": "machine_code", "Code": "machine_code", "compile_cubin": "cubin",
         "anatomy": "dissection", "rebuilds": "caching", "ladder": "climbing", "stages": "nvcc_stages", "captured": "graphs",
         "provoke": "build_faults", "wheel": "wheels", "try_wheels": "wheels",
         "architectures": "binaries", "runs_on": "binaries",
         "formats": "number_formats", "at_the_edges": "edges", "accumulated": "summing", "matmul_errors": "summing",
         "under_autocast": "autocasting", "scaled_steps": "autocasting", "loss_curves": "mixed_training",
         "step_times": "step_types",
         "compatible": "binaries", "arch_flags": "binaries",
         "flags": "flag_effects", "flag_errors": "flag_effects", "flag_times": "flag_effects",
         "half_macros": "half_expressions", "ptxas_words": "ptxas_log", "device_link": "linking", "separate_cost": "linking",
         "default_stream": "null_stream",
         "investigate": "suspects", "wrong_results": "faulty_launches", "shared_accesses": "shared_order",
         "stale_reads": "staleness", "busy": "staleness",
         "exercise": "exercises", "hint": "exercises", "solution": "exercises", "grade": "grading",
         "ledger": "claims", "start": "results", "record": "results", "doctor": "diagnosis"}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"labkit.{_HOME[name]}"), name)
    globals()[name] = value
    return value
