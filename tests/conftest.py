"""What all tests share: tests marked `gpu` are skipped, with the reason, where kernels cannot run on a GPU."""

import pytest

from labkit import machine


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and machine.backend() != "cuda":
        reason = "needs an NVIDIA GPU that torch sees, and nvcc; the backend here is host"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
