"""A training with a probe of somebody else's, at the level advanced, that raises whenever it is called."""

from common import make_regression, print_fact

from tdbg.probes import PROBES, Probe


@PROBES.add
class Raising(Probe):
    """Raises in every step, at every place."""

    name = "raising"
    levels = ("advanced", "extreme")

    def _raise_error(self, *args: object) -> None:
        raise RuntimeError("planted: this probe is unwell")

    call_begins = backward_begins = update_begins = step_ended = record_written = after_step = detach = _raise_error  # type: ignore[assignment]


def main() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x_all, y_all = make_regression(160).tensors
    for step in range(1, 21):
        x, y = x_all[8 * step - 8 : 8 * step], y_all[8 * step - 8 : 8 * step]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print_fact("step", step=step, loss=loss.item(), lr=0.05)


if __name__ == "__main__":
    main()
