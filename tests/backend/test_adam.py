"""Adam: by hand, and bit for bit what torch's own optimiser does."""

import pytest
import torch
from torch import nn

from ipal.backend.adam import Adam


def test_adam_by_hand() -> None:
    theta = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = Adam([theta], lr=0.1, weight_decay=0.5)
    theta.grad = torch.tensor([0.5, -3.0])
    optimizer.step()
    # With the decay the gradients are 1 and -2; at the first step m / (1 - 0.9) is the gradient, the root its size.
    torch.testing.assert_close(theta.data, torch.tensor([0.9, 2.1]))
    theta.grad = torch.tensor([-1.45, 0.95])
    optimizer.step()
    # Gradients -1 and 2: m = 0.09 - 0.1 and -0.18 + 0.2, v = 0.000999 + 0.001 and four times that; divided by 0.19 and
    # 0.001999 they are -0.0526316 and 0.105263 over 1 and 2.
    torch.testing.assert_close(theta.data, torch.tensor([0.9052632, 2.0947368]))


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_it_is_torchs_adam(weight_decay: float, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=generator).to(device) for shape in ((401, 7), (7,), (3, 5))]
    ours, theirs = ([nn.Parameter(tensor.clone()) for tensor in first] for _ in range(2))
    mine = Adam(ours[:2], 1e-2, weight_decay)
    other = torch.optim.Adam(theirs[:2], lr=1e-2, weight_decay=weight_decay, fused=True)
    for step in range(6):
        if step == 2:
            mine.go_on(ours[2:], 1e-3)
            other.param_groups[0]["lr"] = 1e-3
            other.add_param_group({"params": theirs[2:], "lr": 1e-3})
        for a, b in zip(ours, theirs, strict=True):
            gradient = torch.randn(a.shape, generator=generator).to(device)
            a.grad, b.grad = gradient.clone(), gradient.clone()
        if step == 4:
            ours[1].grad = theirs[1].grad = None  # stays, with its moments
        mine.step()
        other.step()
    exact = {"rtol": 0.0, "atol": 0.0} if device == "cpu" else {"rtol": 1e-6, "atol": 1e-7}  # on a GPU in pieces
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **exact)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(mine.state[a][name], other.state[b][name], **exact)
    mine.zero_grad()
    assert all(parameter.grad is None for parameter in ours)
