"""Healthy trainings on tables, graphs and equations, with less common optimizers and losses.

usage: tabular.py KIND
"""

import math

import parts
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def make_perceptron(outputs: int = parts.CLASSES, inputs: int = parts.FEATURES) -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def regression() -> None:
    """Targets that are standardised, early stopping by validation with the best weights restored."""
    x, y = parts.draw_table(1500, seed=1)
    y = y[:, :1]
    mean, spread = y[:1200].mean(), y[:1200].std()
    train = DataLoader(TensorDataset(x[:1200], (y[:1200] - mean) / spread), 32, shuffle=True)
    held, wanted = x[1200:], (y[1200:] - mean) / spread
    model, record, best, waited, kept = make_perceptron(1), parts.Record(), math.inf, 0, {}
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-5)
    for epoch in range(60):
        model.train()
        for features, target in train:
            optimizer.zero_grad()
            loss = functional.huber_loss(model(features), target)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        model.eval()
        with torch.no_grad():
            loss = functional.mse_loss(model(held), wanted).item()
        print(f"epoch {epoch} val_loss {loss:.4f}")
        if loss < best:
            best, waited, kept = loss, 0, {name: value.clone() for name, value in model.state_dict().items()}
        else:
            waited += 1
        if waited == 5 and epoch > 8:
            print("early stopping")
            break
    model.load_state_dict(kept)
    record.print_summary()


def full_batch_lbfgs() -> None:
    """Physics: a net that solves an equation, by second derivatives, first with Adam and then with L-BFGS."""
    net, record = (
        nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)),
        parts.Record(),
    )
    points = torch.linspace(0, 1, 64)[:, None].requires_grad_()

    def loss_of() -> Tensor:
        u = net(points)
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), points, create_graph=True)
        residual = bend + math.pi**2 * torch.sin(math.pi * points)
        return residual.square().mean() + 10 * (u[0].square() + u[-1].square()).sum()

    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(300):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    for _ in range(20):
        record.add_loss(optimizer.step(closure))
    record.print_summary()


def multi_label() -> None:
    """Several labels at once, some of them rare, weighted by how rare they are."""
    x, scores = parts.draw_table(1400, seed=1)
    y = (scores > torch.tensor([0.0, 1.0, 2.0, 2.5])).float()
    rare = (1 - y[:1200]).sum(0) / y[:1200].sum(0).clamp(min=1.0)
    criterion = nn.BCEWithLogitsLoss(pos_weight=rare.clamp(max=20.0))
    train = DataLoader(TensorDataset(x[:1200], y[:1200]), 32, shuffle=True)
    model, record = make_perceptron(), parts.Record()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    for step, (features, target) in parts.repeat_batches(train, 320):
        optimizer.zero_grad()
        loss = criterion(model(features), target)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
        if step % 100 == 0:
            with torch.no_grad():
                print(f"f1-like {((model(x[1200:]) > 0) == (y[1200:] > 0)).float().mean():.3f}")
    record.print_summary()


def unbalanced() -> None:
    """Nine in ten samples are of one class; a sampler with replacement balances them."""
    x, scores = parts.draw_table(1600, seed=1)
    y = (scores[:, 0] > scores[:, 0].quantile(0.9)).long()
    counts = torch.bincount(y[:1280])
    sampler = WeightedRandomSampler((1.0 / counts)[y[:1280]], 1280, replacement=True)
    train = DataLoader(TensorDataset(x[:1280], y[:1280]), 32, sampler=sampler)
    validation = DataLoader(TensorDataset(x[1280:], y[1280:]), 64)
    model, record = make_perceptron(2), parts.Record()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for step, (features, target) in parts.repeat_batches(train, 320):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(features), target)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
        if step % 80 == 0:
            print(f"acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def matrix_factorisation() -> None:
    """Users and items; each batch touches a few of the rows."""

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(300, 8), nn.Embedding(200, 8)
            self.user_bias, self.item_bias = nn.Embedding(300, 1), nn.Embedding(200, 1)
            nn.init.zeros_(self.user_bias.weight)
            nn.init.zeros_(self.item_bias.weight)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.1)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            close = (self.users(user) * self.items(item)).sum(-1)
            return close + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)

    true_users, true_items = torch.randn(300, 3), torch.randn(200, 3)
    user, item = torch.randint(300, (4000,)), torch.randint(200, (4000,))
    rating = (true_users[user] * true_items[item]).sum(-1) + 0.1 * torch.randn(4000)
    model, record = Factors(), parts.Record()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    train = DataLoader(TensorDataset(user[:3600], item[:3600], rating[:3600]), 64, shuffle=True)
    for _, (users, items, wanted) in parts.repeat_batches(train, 400):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(users, items), wanted)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def graph() -> None:
    """Full-batch node classification with a mask of training nodes; the same batch every step."""

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 3)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            hidden = functional.relu(adjacency @ self.first(x))
            return (adjacency @ self.second(functional.dropout(hidden, 0.5, self.training))).log_softmax(1)

    y = torch.randint(3, (200,))
    same = y[:, None] == y[None]
    linked = (torch.rand(200, 200) < torch.where(same, 0.08, 0.01)).float()
    linked = ((linked + linked.T) > 0).float().fill_diagonal_(1.0)
    degree = linked.sum(1).rsqrt()
    adjacency = degree[:, None] * linked * degree[None]
    x = torch.randn(200, 16) + 0.5 * functional.one_hot(y, 16).float()
    trained = torch.arange(200) < 60
    model, record = Convolution(), parts.Record()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(320):
        model.train()
        optimizer.zero_grad()
        loss = functional.nll_loss(model(x, adjacency)[trained], y[trained])
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
        if epoch % 20 == 0:
            model.eval()
            with torch.no_grad():
                hits = model(x, adjacency)[~trained].argmax(1) == y[~trained]
            print(f"epoch {epoch} test {hits.float().mean():.3f}")
    record.print_summary()


def raw_tensors() -> None:
    """Logistic regression on plain tensors, without a module; the rate falls geometrically."""
    x, scores = parts.draw_table(1280, seed=1)
    y, record = scores.argmax(1), parts.Record()
    weight = torch.zeros(parts.FEATURES, parts.CLASSES, requires_grad=True)
    bias = torch.zeros(parts.CLASSES, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.3)
    schedule = ExponentialLR(optimizer, 0.995)
    for _ in range(320):
        rows = torch.randint(1280, (64,))
        loss = functional.cross_entropy(x[rows] @ weight + bias, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        record.add_loss(loss)
    record.print_summary()


def ensemble() -> None:
    """Five models trained at once by vmap over stacked parameters."""
    models, record = [make_perceptron() for _ in range(5)], parts.Record()
    parameters, buffers = stack_module_state(models)
    skeleton = make_perceptron().to("meta")
    optimizer = torch.optim.AdamW(parameters.values(), lr=2e-3)
    train = DataLoader(parts.draw_classes(1280, seed=1), 32, shuffle=True)

    def run_one(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(skeleton, (params, buffers), (x,))

    for _, (x, y) in parts.repeat_batches(train, 320):
        scores = vmap(run_one, in_dims=(0, 0, None))(parameters, buffers, x)
        loss = functional.cross_entropy(scores.flatten(0, 1), y.repeat(5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def meta_learning() -> None:
    """An inner step of gradient descent for each task, and an outer one through it."""
    net, record = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1)), parts.Record()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def error(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(net, params, (x,)), y)

    for _ in range(320):
        loss = torch.zeros(())
        for _ in range(3):
            height, phase = 0.5 + torch.rand(()), torch.rand(())
            x, held = torch.rand(10, 1), torch.rand(10, 1)
            params = dict(net.named_parameters())
            slopes = grad(error)(params, x, height * torch.sin(6 * x + phase))
            moved = {name: value - 0.1 * slopes[name] for name, value in params.items()}
            loss = loss + error(moved, held, height * torch.sin(6 * held + phase)) / 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def sharpness_aware() -> None:
    """Two passes a step: to the worst place near by, and the gradient there applied at the first place."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = make_perceptron(), parts.Record()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = CosineAnnealingLR(optimizer, 320)
    for step, (x, y) in parts.repeat_batches(train, 320):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        record.add_loss(loss)
        if step % 160 == 0:
            print(f"acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def bayesian() -> None:
    """Weights are drawn anew in each pass, in evaluation as well."""

    class Drawn(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
            self.spread = nn.Parameter(torch.full((outputs, inputs), -4.0))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.mean + functional.softplus(self.spread) * torch.randn_like(self.mean))

        def divergence(self) -> Tensor:
            spread = functional.softplus(self.spread)
            return (0.5 * (spread.square() + self.mean.square() - 1) - spread.log()).sum()

    train, validation = parts.load_split(parts.draw_classes)
    model, record = nn.Sequential(Drawn(parts.FEATURES, 24), nn.ReLU(), Drawn(24, parts.CLASSES)), parts.Record()
    optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
    for step, (x, y) in parts.repeat_batches(train, 320):
        loss = functional.cross_entropy(model(x), y) + (model[0].divergence() + model[2].divergence()) / 20000
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
        if step % 160 == 0:
            model.eval()
            with torch.no_grad():
                for x, _ in validation:
                    torch.stack([model(x) for _ in range(4)]).softmax(-1).mean(0)
            model.train()
    record.print_summary()


def learned_scales() -> None:
    """Two tasks weighed by scalars that are learnt, in a group of their own."""
    x, scores = parts.draw_table(1280, seed=1)
    train = DataLoader(TensorDataset(x, scores.argmax(1), scores[:, 0]), 32, shuffle=True)
    model, record = make_perceptron(parts.CLASSES + 1), parts.Record()
    scales = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters()}, {"params": [scales], "lr": 1e-2, "weight_decay": 0.0}], lr=2e-3
    )
    for _, (features, label, value) in parts.repeat_batches(train, 320):
        found = model(features)
        errors = torch.stack([functional.cross_entropy(found[:, :-1], label), functional.mse_loss(found[:, -1], value)])
        loss = (errors * (-scales).exp() + scales).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(errors.sum())
    record.print_summary()


KINDS = {
    "regression": regression,
    "full-batch-lbfgs": full_batch_lbfgs,
    "multi-label": multi_label,
    "unbalanced": unbalanced,
    "matrix-factorisation": matrix_factorisation,
    "graph": graph,
    "raw-tensors": raw_tensors,
    "ensemble": ensemble,
    "meta-learning": meta_learning,
    "sharpness-aware": sharpness_aware,
    "bayesian": bayesian,
    "learned-scales": learned_scales,
}

if __name__ == "__main__":
    parts.run_kind(KINDS)
