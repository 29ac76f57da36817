"""Adam, by the fused kernel that `torch.optim.Adam(fused=True)` calls, to the same bits.

The optimiser class itself loads torch's compiler with some eight hundred modules when it is first made, which takes
longer than many a run.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

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
        moving = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not moving:
            return
        weights = [parameter.data for parameter in moving]
        gradients = [parameter.grad for parameter in moving if parameter.grad is not None]
        states = [self.state_of(parameter) for parameter in moving]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            weights,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
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
