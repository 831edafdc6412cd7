"""For compute-sanitizer: launches versions of an operator in each mode.

launch_operator.py NAME VERSION[,VERSION...] ROWSxCOLS...
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

import labkit  # noqa: E402
from labkit.cases import draw_inputs  # noqa: E402

name, versions, shapes = sys.argv[1], [int(v) for v in sys.argv[2].split(",")], sys.argv[3:]
operator = labkit.load(name, version=versions[0] if len(versions) == 1 else None)
for shape in shapes:
    for dtype in (torch.float32, torch.bfloat16):
        for mode in operator.reference.MODES:
            case = {"shape": tuple(int(n) for n in shape.split("x"))}
            inputs = draw_inputs(operator.reference, mode, dtype, operator.device, case, seed=0)
            for version in versions:
                made = getattr(operator.ops, mode)(*inputs, version)
                for t in made if isinstance(made, tuple) else (made,):
                    t.cpu()
print("launched", len(shapes) * 2 * len(versions), "of each mode")
