"""total: two outputs, and a block that has to be the last one. Autograd, what it refuses, wrong kernels."""

import pytest
import torch

import labkit
from labkit.verdict import CheckFailed

TICKET = "is_last = atomicAdd(tickets, 1u) == gridDim.x - 1;"


@pytest.fixture(scope="module")
def total():
    return labkit.load("total")


def test_opcheck_and_one_graph_with_changing_shapes(total):
    x = torch.randn(5, 7, dtype=torch.float64, device=total.device).requires_grad_()
    torch.library.opcheck(total.ops.forward.default, (x, total.latest))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: total(x)[1].square(), fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 8), (5, 3), (1, 1)):
        x = torch.randn(shape, dtype=torch.float64, device=total.device, requires_grad=True)
        torch.testing.assert_close(compiled(x), x.sum().square().view(1), rtol=1e-13, atol=1e-13)
        grad, = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(grad, (2 * x.sum()).expand(shape), rtol=1e-13, atol=1e-13)


def test_launches_do_not_share_a_ticket(total):
    for rows in (1, 300, 2, 0, 7):
        x = torch.randint(-9, 9, (rows, 40), device=total.device).float()
        for version in total.versions:
            sums, all_of_it = total(x, version=version)
            assert torch.equal(sums, x.sum(1)) and all_of_it.item() == x.sum()


@pytest.mark.parametrize("x, says", [
    (torch.ones(2, 3, dtype=torch.float16), r"`x` is float16; total takes float32 and float64.*x\.float|\.float\(\)"),
    (torch.ones(3), "two dimensions"), (torch.ones(3, 4).t(), "not contiguous")])
def test_what_is_refused(total, x, says):
    with pytest.raises(RuntimeError, match=says):
        total(x.to(total.device))


def test_outputs_are_checked(total):
    x = torch.ones(3, 4, device=total.device)
    memory = torch.ones(4, device=total.device)
    for sums, one, says in ((memory[:2], memory[3:], "`sums` must be contiguous, float32 of shape \\[3\\]"),
                            (memory[:3], memory[:2], "`total` must be contiguous, float32 of shape \\[1\\]"),
                            (memory[:3], memory[2:3], "`total` shares memory with `sums`")):
        with pytest.raises(RuntimeError, match=says):
            total.ops.forward_out(x, sums, one, total.latest)


@pytest.mark.parametrize("version, old, new", [
    (1, "sums, total, rows);", "sums, total, rows - (rows > 1));"), (2, TICKET, TICKET.replace("- 1", "- 1 - (gridDim.x > 1)")),
    (2, TICKET, "is_last = blockIdx.x == 0;")])
def test_check_finds_wrong_kernels(version, old, new):
    with pytest.raises(CheckFailed, match="total .*(wrong|not written)"):
        labkit.check(labkit.mutant("total", version, old, new))
