"""What a reader has set in PyTorch for all that follows, in an earlier cell perhaps, does not change what a check finds."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable

import torch


def usual(function: Callable) -> Callable:
    """The function, within which gradients are on, tensors that name no device are on the CPU, and autocast, inference mode
    and anomaly detection are off, whatever they were; afterwards they are again what they were.
    """
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            if torch.is_anomaly_enabled():
                stack.enter_context(torch.autograd.set_detect_anomaly(False))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    # The cache is emptied where the reader's block ends: weights of another type would be left in it.
                    stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
            return function(*args, **kwargs)
    return call
