"""What tests share: those marked `gpu` are skipped, with the reason, where kernels cannot run on a GPU."""

import pytest

from labkit import machine, results


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A function that returns the session of lab 11, which begins empty and with no results recorded."""
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path))
    monkeypatch.setattr(results, "_session", results.Session(lab="11_trace"))
    return results.session


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and machine.backend() != "cuda":
        reason = "needs an NVIDIA GPU that torch sees, and nvcc; the backend here is host"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
