"""Launches every version, mode and dtype of GeLU on a few awkward arrays; run under compute-sanitizer by a test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

import labkit  # noqa: E402

gelu = labkit.load("gelu")
launched = 0
for dtype in gelu.reference.DTYPES:
    for n, offset in ((1, 0), (4097, 0), (4097, 1), (8200, 0)):
        for mode, (inputs, outputs, _) in gelu.reference.MODES.items():
            given = [torch.ones(n + offset, dtype=dtype, device="cuda")[offset:] for _ in inputs]
            for version in gelu.versions:
                # New memory each time: initcheck sees an element that is read here and was never written.
                out = [torch.empty(n + offset, dtype=dtype, device="cuda")[offset:] for _ in outputs]
                getattr(gelu.ops, f"{mode}_out")(*given, *out, version)
                launched += 1
                for tensor in out:
                    tensor.cpu()
print("launched", launched)
