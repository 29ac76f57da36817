"""Adam, by the fused kernel that `torch.optim.Adam(fused=True)` calls, to the same bits.

The optimiser class itself loads torch's compiler with some eight hundred modules when it is first made, which takes
longer than many a run. On a GPU, large tensors take a kernel of our own.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ipal.backend import cuda_kernels

LARGE = 2**18
"""Numbers of a tensor for which the fused kernel starts too few blocks to keep a GPU busy."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


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
        every = [
            (parameter, gradient, state["exp_avg"], state["exp_avg_sq"], state["step"])
            for parameter in self.parameters
            if (gradient := parameter.grad) is not None
            for state in [self.state_of(parameter)]
        ]
        if not every:
            return
        torch._foreach_add_([step for *_, step in every], 1)
        numbers = (float(self.lr), self.weight_decay, BETA1, BETA2, EPSILON)
        others = [one for one in every if not (_is_large(one[0]) and cuda_kernels.adam(*one, numbers))]
        if not others:
            return
        weights, gradients, means, squares, steps = map(list, zip(*others, strict=True))
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


def _is_large(parameter: Tensor) -> bool:
    return parameter.is_cuda and parameter.numel() >= LARGE
