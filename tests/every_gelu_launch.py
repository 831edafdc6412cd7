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
            tensors = [torch.ones(n + offset, dtype=dtype, device="cuda")[offset:] for _ in inputs + outputs]
            for version in gelu.versions:
                getattr(gelu.ops, f"{mode}_out")(*tensors, version)
                launched += 1
            for out in tensors[len(inputs):]:
                out.sum().item()
print("launched", launched)
