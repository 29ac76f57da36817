"""Adam, by the fused kernel that `torch.optim.Adam(fused=True)` calls, to the same bits.

The optimiser class itself loads torch's compiler with some eight hundred modules when it is first made, which takes
longer than many a run.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
PIECES = 30
"""Tensors of one start of the fused kernel on a GPU. A block of threads takes 65,536 numbers of one: a large tensor in
pieces keeps more of the GPU busy."""


class Adam:
    r"""Steps along running means of gradients, each divided by the root of a running mean of its square.

    .. math:: \theta \leftarrow \theta - \eta \, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon},
        \quad m \leftarrow \beta_1 m + (1 - \beta_1) g, \; v \leftarrow \beta_2 v + (1 - \beta_2) g^2

    Source: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization", Algorithm 1. `weight_decay` times the
    parameter is added to its gradient g first.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        self.parameters, self.lr, self.weight_decay = list(parameters), lr, weight_decay
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        """For every parameter that has had a gradient: `step` (t), `exp_avg` (m) and `exp_avg_sq` (v)."""

    def go_on(self, more: Iterable[nn.Parameter], lr: float) -> None:
        """With more parameters, and with this learning rate from here on."""
        self.parameters.extend(more)
        self.lr = lr

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step of every parameter that has a gradient."""
        moving = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not moving:
            return
        states = [self.state_of(parameter) for parameter in moving]
        torch._foreach_add_([state["step"] for state in states], 1)
        most = -(-sum(parameter.numel() for parameter in moving) // PIECES)
        parts = [
            (*some, state["step"])
            for parameter, state in zip(moving, states, strict=True)
            for some in in_pieces(most, parameter.data, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        ]
        weights, gradients, means, squares, steps = (list(column) for column in zip(*parts, strict=True))
        torch._fused_adam_(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=self.lr,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The moments of a parameter; zeros at first."""
        if parameter not in self.state:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self.state[parameter]


def in_pieces(most: int, *tensors: Tensor | None) -> Iterable[tuple[Tensor, ...]]:
    """Tensors of one shape in pieces of about so many numbers on a GPU; elsewhere as they are."""
    given = [tensor for tensor in tensors if tensor is not None]
    number = min(-(-given[0].numel() // most), len(given[0])) if given[0].is_cuda else 1
    return zip(*(tensor.tensor_split(number) for tensor in given), strict=True) if number > 1 else [tuple(given)]
