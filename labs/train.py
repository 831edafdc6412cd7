"""Trains a GPT-style Transformer with a GeLU of your choice, on one process or, started by torchrun, on many.

    python labs/train.py --tiny                    # on a CPU too
    python labs/train.py --sequences 2             # on a GPU of 16 GB
    torchrun --standalone --nproc-per-node=gpu labs/train.py --way fsdp --steps 100 --folder runs/one

Every step's loss goes to standard output, and with --folder to log.jsonl in it, where the checkpoints lie too. The same command
again goes on from the newest checkpoint. Where a process dies, torchrun does that by itself:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts=3 ...

The variable gives the processes of each start a store of their own. Without it they may read the addresses of those that died
(pytorch/pytorch#135712).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # labkit, where it is not installed

import labkit  # noqa: E402
import sums  # noqa: E402
from checkpoints import Checkpoints  # noqa: E402
from gelus import NAMES, gelus  # noqa: E402
from processes import WAYS, Processes, joined  # noqa: E402
from text_batches import Windows, loader, text_tokens  # noqa: E402
from training import PRECISIONS, Settings, Trainer, case_study, tiny  # noqa: E402
from transformer import sequences_that_fit  # noqa: E402


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        run(options)
        return
    except torch.OutOfMemoryError as error:
        short = str(error)
    except ValueError as error:
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent != Path(__file__).parent:
            raise
        # These files refuse what was asked for. Every process says so: torchrun ends the others when one has ended.
        raise SystemExit(f"{Path(__file__).name}: {error}") from None
    # Only out here is nothing left that holds the model, so that what is free can be seen.
    gc.collect()
    torch.cuda.empty_cache()
    settings, processes = settings_of(options), int(os.environ.get("WORLD_SIZE", 1))
    fits = sequences_that_fit(settings.layers, settings.width, settings.vocabulary, settings.context, most=settings.sequences)
    raise SystemExit(f"{short}\n{settings.sequences} sequences do not fit on {processes} of these GPUs; about "
                     f"{fits * processes} do: --sequences {fits * processes}. Each GPU takes its part of them")


def settings_of(options: argparse.Namespace) -> Settings:
    """The case study's settings, or those of a tiny model, with what the command line changes."""
    base = (tiny if options.tiny else case_study)(torch.device(options.device))
    chosen = {field.name: getattr(options, field.name) for field in dataclasses.fields(Settings)}
    return dataclasses.replace(base, **{name: value for name, value in chosen.items() if value is not None})


def run(options: argparse.Namespace) -> None:
    """Trains as the command line asks, together with the other processes that torchrun started."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("PyTorch sees no GPU here; take --device cpu --tiny")
    settings = settings_of(options)
    if settings.vocabulary < len(sums.ALPHABET):
        raise ValueError(f"vocabulary is {settings.vocabulary}, and the text has {len(sums.ALPHABET)} characters")
    with joined(options.device) as processes:
        options.way = options.way or ("plain" if processes.count == 1 else "ddp")
        if processes.rank == 0 and options.device == "cpu" and not options.tiny:
            print(f"{settings.layers} layers of {settings.width} on a CPU: a step can take minutes; --tiny takes seconds",
                  file=sys.stderr)
        # One process builds the operator where it is not built yet; the others wait for it.
        activation = gelus(labkit.load("gelu", backend="cuda" if options.device == "cuda" else "host"))[options.gelu]
        train(Trainer(settings, processes, activation, options.way), processes, options)


def train(trainer: Trainer, processes: Processes, options: argparse.Namespace) -> None:
    """Trains up to step number --steps, from the newest checkpoint in --folder where there is one; all processes together."""
    settings, steps, folder = dataclasses.asdict(trainer.settings), options.steps, options.folder
    windows = Windows(text_tokens(), trainer.settings.sequences, trainer.settings.context, trainer.settings.seed,
                      processes.rank, processes.count)
    checkpoints = Checkpoints(folder / "checkpoints", settings) if folder else None
    first = checkpoints.load(trainer) if checkpoints else 0
    if first > steps:
        raise ValueError(f"{folder} is already at step {first}, and --steps is {steps}; take more, or another folder")
    log = Log(folder / "log.jsonl" if folder else None) if processes.rank == 0 else None
    if log:
        log.write(start=first, processes=processes.count, way=options.way, gelu=options.gelu, compile=options.compile,
                  **settings)
    if options.compile:
        trainer.plain.compile(dynamic=False)
        if log:
            print("The first step compiles the model, which can take a minute", file=sys.stderr)
    begun = time.perf_counter()
    for number, batch in zip(range(first, steps), loader(windows, range(first, steps), processes.device)):
        tokens, targets = (part.to(processes.device, non_blocking=True) for part in batch)
        loss = processes.mean(trainer.step(number, tokens, targets))
        if log:
            log.write(step=number, loss=loss, ms=round(1e3 * (time.perf_counter() - begun), 3))
        if checkpoints and (number + 1 == steps or (number + 1) % options.save_every == 0):
            checkpoints.save(number + 1, trainer)
        begun = time.perf_counter()  # the time of a step, without that of a checkpoint
    if log:
        log.write(end=steps)


class Log:
    """Lines of JSON, one an event, on standard output and at the end of a file; each is there as soon as it is written."""

    def __init__(self, path: Path | None):
        self.path = path
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **event) -> None:
        line = json.dumps(event)
        print(line, flush=True)
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--way", choices=WAYS, help="how processes share the model; ddp where there are several")
    parser.add_argument("--gelu", choices=NAMES, default="fused")
    parser.add_argument("--compile", action="store_true", help="the whole model through torch.compile")
    parser.add_argument("--steps", type=_count, default=100, help="how many in all, those of earlier runs among them")
    parser.add_argument("--folder", type=Path, help="for the log and the checkpoints; without it nothing is written")
    parser.add_argument("--save-every", type=_count, default=50, metavar="STEPS")
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU, also on a GPU")
    for field in dataclasses.fields(Settings):
        values = {"choices": tuple(PRECISIONS)} if field.name == "precision" else {"metavar": "N"}
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), **values,
                            help=f"the case study has {field.default}")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    main()
