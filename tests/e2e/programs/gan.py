"""Two optimizers that take turns: a discriminator, then a generator."""

import torch
from common import compute_grad_norm, print_fact
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce


def main() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=5e-4)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    for step in range(1, 13):
        real = 0.5 * torch.randn(32, 2) + torch.tensor([2.0, -1.0])
        fake = generator(torch.randn(32, 4))
        d_optimizer.zero_grad()
        d_loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
        d_loss.backward()
        d_norm = compute_grad_norm(discriminator.parameters())
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = bce(discriminator(fake), ones)
        g_loss.backward()
        g_optimizer.step()
        print_fact("step", step=step, loss=d_loss.item(), other=g_loss.item(), norm=d_norm, lr=1e-3)
    print_fact("done", steps=12)


if __name__ == "__main__":
    main()
