"""`labkit.empty_blocks`: a grid that does nothing."""

import pytest
import torch

import labkit


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="empty_blocks: it needs a GPU"):
        labkit.empty_blocks(100, 32)


@pytest.mark.gpu
def test_twice_the_blocks_take_twice_the_time():
    took = {}
    for blocks in (1 << 20, 1 << 21):
        labkit.empty_blocks(blocks, 64)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            labkit.empty_blocks(blocks, 64)
        stop.record()
        torch.cuda.synchronize()
        took[blocks] = start.elapsed_time(stop)
    assert took[1 << 21] == pytest.approx(2 * took[1 << 20], rel=0.1)
