"""GradNorm (Chen et al. 2018): weights of the tasks, so that all of them train at similar rates."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from debugging import diagnostics
from torch import Tensor
from yacs.config import CfgNode

LEAST = 0.05  # no task is silenced


class GradNorm:
    """Keeps one weight per task; they sum to the number of tasks."""

    def __init__(self, tasks: tuple[str, ...], shared: Tensor, config: CfgNode) -> None:
        self.tasks, self.shared, self.config = tasks, shared, config
        self.weights = dict.fromkeys(tasks, 1.0)
        self.first: dict[str, float] = {}  # losses of the first update: what the rates are measured against

    def update(self, forward: Callable[[], Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """Move the weights; returns what was seen, by quantity and task.

        forward: makes the losses anew, without weights and with a graph of their own, which is used up. All ranks of
        a job call it together: norms and losses are averaged over them.
        """
        gradients, found = {}, []
        with diagnostics.gradnorm_memory(device=self.shared.device) as memory:
            losses = forward()
            memory.mark("re-forward", losses)
            for task in self.tasks:
                (gradient,) = torch.autograd.grad(losses[task], self.shared, retain_graph=task != self.tasks[-1])
                gradients[task] = gradient
                found += [gradient.norm(), losses[task].detach()]
                memory.mark(f"gradient of {task}", {"gradient": gradient})
            del losses
        seen = torch.stack(found).float()
        if dist.is_initialized():
            dist.all_reduce(seen)
            seen /= dist.get_world_size()
        numbers = seen.tolist()
        plain = dict(zip(self.tasks, numbers[::2], strict=True))
        loss = dict(zip(self.tasks, numbers[1::2], strict=True))
        self.first = self.first or loss
        rate = {task: loss[task] / max(self.first[task], 1e-12) for task in self.tasks}
        mean_rate = sum(rate.values()) / len(rate)
        norm = {task: self.weights[task] * plain[task] for task in self.tasks}
        mean_norm = sum(norm.values()) / len(norm)
        ratio = {task: rate[task] / max(mean_rate, 1e-12) for task in self.tasks}
        target = {task: mean_norm * ratio[task] ** self.config.ALPHA for task in self.tasks}
        for task in self.tasks:  # the gradient of |norm - target| by the weight, its target held fixed
            direction = (norm[task] > target[task]) - (norm[task] < target[task])
            step = self.config.LR * direction * plain[task] / max(mean_norm, 1e-12)
            self.weights[task] = max(self.weights[task] - step, LEAST)
        total = sum(self.weights.values())
        self.weights = {task: weight * len(self.tasks) / total for task, weight in self.weights.items()}
        diagnostics.gradnorm_metrics(
            loss, self.first, norm, self.weights, alpha=self.config.ALPHA, targets=target, shared=gradients
        )
        diagnostics.gradnorm_values(
            {
                f"{name} of {task}": value[task]
                for name, value in (
                    ("loss", loss),
                    ("first loss", self.first),
                    ("rate", rate),
                    ("norm", norm),
                    ("target", target),
                    ("weight", self.weights),
                )
                for task in self.tasks
            }
            | {f"gradient of {task}": gradient for task, gradient in gradients.items()}
        )
        return {"loss": loss, "ratio": ratio, "norm": norm, "target": target, "weight": dict(self.weights)}

    def state_dict(self) -> dict[str, dict[str, float]]:
        """What is needed to go on."""
        return {"weights": self.weights, "first": self.first}

    def load_state_dict(self, state: Mapping[str, dict[str, float]]) -> None:
        """Go on from a saved state."""
        self.weights, self.first = dict(state["weights"]), dict(state["first"])
