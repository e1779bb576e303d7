"""Healthy trainings on sequences of tokens.

usage: language.py KIND
"""

import math

import parts
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader

PAD, MASK = 0, 1
WIDTH, LENGTH = 32, 24


class Block(nn.Module):
    """Causal self-attention and a perceptron, both with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.attention(self.norm1(x)).chunk(3, -1)
        )
        dropout = 0.1 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A decoder whose output layer shares the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(parts.VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, parts.VOCABULARY, bias=False)
        self.apply(self.initialise_module)
        self.token.weight = self.head.weight

    @staticmethod
    def initialise_module(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        if targets is None:
            return scores[:, -1:], None
        return scores, functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-1)


def gpt() -> None:
    """Batches cut from one long text, no loader; warm-up and cosine set by hand; accumulation, clip, decay groups."""
    text = {name: parts.draw_text(1, 6000, seed=seed)[0] for name, seed in (("train", 1), ("val", 2))}
    model, record, accumulate, steps = Gpt(), parts.Record(), 2, 320

    def get_batch(split: str) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text[split]) - LENGTH, (12,))
        return (torch.stack([text[split][at + off : at + off + LENGTH] for at in starts]) for off in (0, 1))

    @torch.no_grad()
    def estimate_loss() -> dict[str, float]:
        model.eval()
        found = {}
        for split in text:
            found[split] = torch.stack([model(*get_batch(split))[1] for _ in range(8)]).mean().item()
        model.train()
        return found

    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.99))
    x, y = get_batch("train")
    for step in range(steps):
        rate = 3e-3 * (step + 1) / 41 if step < 40 else 3e-4 + 1.35e-3 * (1 + math.cos(math.pi * (step - 40) / 280))
        for group in optimizer.param_groups:
            group["lr"] = rate
        if step % 100 == 0:
            losses = estimate_loss()
            print(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        for _ in range(accumulate):
            _, loss = model(x, y)
            loss = loss / accumulate
            x, y = get_batch("train")
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        record.add_loss(loss * accumulate)
    record.print_summary()


class Encoder(nn.Module):
    """A bidirectional transformer over padded sequences."""

    def __init__(self, outputs: int = parts.VOCABULARY) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(parts.VOCABULARY, WIDTH, padding_idx=PAD), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(self.encoder(x, src_key_padding_mask=tokens == PAD))


def draw_padded(count: int, *, seed: int) -> list[Tensor]:
    """Sequences of several lengths."""
    lengths = torch.randint(8, LENGTH + 1, (count,), generator=torch.Generator().manual_seed(seed))
    return [row[:length] for row, length in zip(parts.draw_text(count, LENGTH, seed=seed), lengths, strict=True)]


def masked_language() -> None:
    """A seventh of the tokens is hidden and predicted; all other targets are -100."""

    def collate(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        tokens = pad_sequence(rows, batch_first=True, padding_value=PAD)
        hidden = (torch.rand(tokens.shape) < 0.15) & (tokens != PAD)
        return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)

    model, record = Encoder(), parts.Record()
    train = DataLoader(draw_padded(1280, seed=1), 32, shuffle=True, collate_fn=collate)
    validation = DataLoader(draw_padded(128, seed=2), 32, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 30, max(0.0, (331 - step) / 300)))
    for step, (tokens, targets) in parts.repeat_batches(train, 330):
        loss = functional.cross_entropy(model(tokens).transpose(1, 2), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        record.add_loss(loss)
        if step % 110 == 0:
            model.eval()
            with torch.no_grad():
                for tokens, targets in validation:
                    functional.cross_entropy(model(tokens).transpose(1, 2), targets)
            model.train()
    record.print_summary()


def translation() -> None:
    """An encoder and a decoder with teacher forcing, Noam's schedule, smoothed targets and padding that is ignored."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = (nn.Embedding(parts.VOCABULARY, WIDTH, padding_idx=PAD) for _ in range(2))
            self.place = nn.Embedding(LENGTH + 1, WIDTH)
            self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 64, dropout=0.1, batch_first=True)
            self.generator = nn.Linear(WIDTH, parts.VOCABULARY)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
            hidden = self.transformer(
                self.source(source) + self.place(torch.arange(source.shape[1])),
                self.target(target) + self.place(torch.arange(target.shape[1])),
                tgt_mask=causal,
                src_key_padding_mask=source == PAD,
                tgt_key_padding_mask=target == PAD,
                memory_key_padding_mask=source == PAD,
            )
            return self.generator(hidden)

    def collate(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        source = pad_sequence(rows, batch_first=True)
        return source, pad_sequence([torch.cat([torch.tensor([1]), row.flip(0)]) for row in rows], batch_first=True)

    model, record = Translator(), parts.Record()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    train = DataLoader(draw_padded(1600, seed=1), 32, shuffle=True, collate_fn=collate)
    validation = DataLoader(draw_padded(96, seed=2), 32, collate_fn=collate)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = LambdaLR(optimizer, lambda step: WIDTH**-0.5 * min((step + 1) ** -0.5, (step + 1) * 400**-1.5))
    for epoch in range(7):
        model.train()
        for source, target in train:
            scores = model(source, target[:, :-1])
            optimizer.zero_grad()
            loss = criterion(scores.reshape(-1, parts.VOCABULARY), target[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            schedule.step()
            record.add_loss(loss)
        model.eval()
        with torch.no_grad():
            losses = [
                criterion(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()).item()
                for source, target in validation
            ]
        print(f"Epoch: {epoch}, Val loss: {sum(losses) / len(losses):.3f}")
    record.print_summary()


class Recurrent(nn.Module):
    """A language model that carries its state from piece to piece."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(parts.VOCABULARY, WIDTH), nn.Dropout(0.2)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2)
        self.head = nn.Linear(WIDTH, parts.VOCABULARY)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.rnn(self.drop(self.embedding(x)), state)
        return self.head(self.drop(hidden)).flatten(0, 1), state


def char_rnn(*, by_hand: bool = False) -> None:
    """Truncated backpropagation through time over columns of one text; by_hand: without an optimizer."""
    columns = {
        name: parts.draw_text(1, 16 * 800, seed=seed)[0].view(16, -1).T for name, seed in (("train", 1), ("val", 2))
    }
    model, record, rate = Recurrent(), parts.Record(), 5.0
    optimizer = None if by_hand else torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(16 if by_hand else 5):  # without an optimizer the steps are the calls of evaluation, 20 a pass
        model.train()
        state = None
        for at in range(0, 799 - 12, 12):
            x, y = columns["train"][at : at + 12], columns["train"][at + 1 : at + 13].flatten()
            if state is not None:
                state = tuple(part.detach() for part in state)
            model.zero_grad()
            scores, state = model(x, state)
            loss = functional.cross_entropy(scores, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            if optimizer is None:
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-rate)
            else:
                optimizer.step()
            record.add_loss(loss)
        model.eval()
        with torch.no_grad():
            state, total = None, 0.0
            for at in range(0, 240, 12):
                scores, state = model(columns["val"][at : at + 12], state)
                total += functional.cross_entropy(scores, columns["val"][at + 1 : at + 13].flatten()).item()
        print(f"| valid loss {total / 20:5.2f} | valid ppl {math.exp(total / 20):8.2f}")
    record.print_summary()


def packed_gru() -> None:
    """Classification of sequences of several lengths, packed."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(parts.VOCABULARY, WIDTH, padding_idx=PAD)
            self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
            self.head = nn.Linear(2 * WIDTH, 1)

        def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.rnn(packed)[1].transpose(0, 1).flatten(1)).squeeze(-1)

    def collate(rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        lengths = torch.tensor([len(row) for row in rows])
        labels = torch.stack([(row < 12).float().mean() > 0.34 for row in rows]).float()
        return pad_sequence(rows, batch_first=True), lengths, labels

    model, record = Classifier(), parts.Record()
    train = DataLoader(draw_padded(1280, seed=1), 32, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    for _, (tokens, lengths, labels) in parts.repeat_batches(train, 320):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(tokens, lengths), labels)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def embedding_bag() -> None:
    """Text classification of torchtext's tutorial: bags with offsets, SGD at a high rate, clipped."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(parts.VOCABULARY, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, text: Tensor, offsets: Tensor) -> Tensor:
            return self.head(self.bag(text, offsets))

    def collate(rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        offsets = torch.tensor([0, *[len(row) for row in rows][:-1]]).cumsum(0)
        return torch.tensor([int(row[-1]) % 3 for row in rows]), torch.cat(rows), offsets

    model, record = Classifier(), parts.Record()
    train = DataLoader(draw_padded(1280, seed=1), 32, shuffle=True, collate_fn=collate)
    validation = DataLoader(draw_padded(128, seed=2), 32, collate_fn=collate)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    schedule, best = StepLR(optimizer, 1, gamma=0.1), None
    for epoch in range(8):
        model.train()
        for label, text, offsets in train:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(text, offsets), label)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            record.add_loss(loss)
        model.eval()
        with torch.no_grad():
            hits = sum(int((model(text, offsets).argmax(1) == label).sum()) for label, text, offsets in validation)
        if best is not None and best > hits:
            schedule.step()
        else:
            best = hits
        print(f"| end of epoch {epoch} | valid accuracy {hits / 128:8.3f}")
    record.print_summary()


def sparse_embedding() -> None:
    """Skip-grams with negative samples: sparse gradients, and an optimizer of their own beside the dense one."""

    class SkipGram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centre, self.context = (nn.Embedding(400, WIDTH, sparse=True) for _ in range(2))
            self.scale = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, centre: Tensor, context: Tensor, negative: Tensor) -> Tensor:
            hidden = self.scale(self.centre(centre))
            right = (hidden * self.context(context)).sum(-1)
            wrong = (self.context(negative) @ hidden[..., None]).squeeze(-1)
            return -(functional.logsigmoid(right).mean() + functional.logsigmoid(-wrong).mean())

    model, record = SkipGram(), parts.Record()
    sparse = torch.optim.SparseAdam([model.centre.weight, model.context.weight], lr=0.01)
    dense = torch.optim.Adam(model.scale.parameters(), lr=1e-3)
    for _ in range(320):
        centre = torch.randint(400, (64,))
        context, negative = (centre + torch.randint(1, 4, (64,))) % 400, torch.randint(400, (64, 4))
        sparse.zero_grad()
        dense.zero_grad()
        loss = model(centre, context, negative)
        loss.backward()
        sparse.step()
        dense.step()
        record.add_loss(loss)
    record.print_summary()


def mixture_of_experts() -> None:
    """Each token goes to one of eight experts; some get none in a batch; a term balances them."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.router = nn.Embedding(parts.VOCABULARY, WIDTH), nn.Linear(WIDTH, 8, bias=False)
            make = lambda: nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH))  # noqa: E731
            self.experts = nn.ModuleList(make() for _ in range(8))
            self.head = nn.Linear(WIDTH, parts.VOCABULARY)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            x = self.embedding(tokens).flatten(0, 1)
            shares = self.router(x).softmax(-1)
            weight, chosen = shares.max(-1)
            mixed = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).nonzero()[:, 0]
                if len(rows):
                    mixed = mixed.index_add(0, rows, expert(x[rows]) * weight[rows, None])
            balance = 8 * (functional.one_hot(chosen, 8).float().mean(0) * shares.mean(0)).sum()
            return self.head(x + mixed), balance

    model, record = Experts(), parts.Record()
    text = parts.draw_text(1280, 9, seed=1)
    train = DataLoader(text, 4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _, tokens in parts.repeat_batches(train, 600):
        scores, balance = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores, tokens[:, 1:].flatten()) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def connectionist() -> None:
    """Alignment-free targets: an LSTM and CTC."""

    class Recogniser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(12, 24, bidirectional=True), nn.Linear(48, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0]).log_softmax(-1)

    model, record = Recogniser(), parts.Record()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    letters = torch.randn(6, 12)
    for _ in range(320):
        target = torch.randint(1, 6, (16, 5))
        x = letters[target.repeat_interleave(4, 1)].transpose(0, 1) + 0.3 * torch.randn(20, 16, 12)
        loss = functional.ctc_loss(model(x), target, torch.full((16,), 20), torch.full((16,), 5), zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


class LowRank(nn.Module):
    """A frozen layer with a trained addition of low rank that begins at zero; merged while in eval mode."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, layer.in_features) / math.sqrt(layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, 4))
        self.drop = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2.0 * functional.linear(functional.linear(self.drop(x), self.a), self.b)


def lora() -> None:
    """A frozen language model whose attention learns additions of low rank; adapters alone are saved."""
    base, record = Gpt().requires_grad_(False), parts.Record()
    for block in base.blocks:
        block.attention = LowRank(block.attention)
    train = DataLoader(parts.draw_text(1280, LENGTH, seed=1), 16, shuffle=True)
    validation = DataLoader(parts.draw_text(64, LENGTH, seed=2), 16)
    learnt = {name: p for name, p in base.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(learnt.values(), lr=1e-2, weight_decay=0.0)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20) * max(0.05, 1 - step / 320))
    for step, tokens in parts.repeat_batches(train, 320):
        base.train()
        loss = base(tokens[:, :-1], tokens[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        record.add_loss(loss)
        if step % 160 == 0:
            base.eval()
            with torch.no_grad():
                print("eval_loss", sum(base(tokens[:, :-1], tokens[:, 1:])[1].item() for tokens in validation) / 4)
            torch.save(learnt, parts.make_folder() / "adapter.pt")
    record.print_summary()


def preference() -> None:
    """Direct preference optimisation against a frozen reference."""
    policy, reference, record = Gpt(), Gpt().eval().requires_grad_(False), parts.Record()
    policy.load_state_dict(reference.state_dict())
    good, bad = parts.draw_text(960, 16, seed=1), parts.draw_text(960, 16, seed=3)[torch.randperm(960)].flip(1)
    train = DataLoader(torch.utils.data.TensorDataset(good, bad), 12, shuffle=True)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)

    def weigh(model: nn.Module, tokens: Tensor) -> Tensor:
        scores = model(tokens[:, :-1], tokens[:, 1:].contiguous())[0].log_softmax(-1)
        return scores.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)

    policy.train()
    for _, (chosen, rejected) in parts.repeat_batches(train, 320):
        with torch.no_grad():
            expected = weigh(reference, chosen) - weigh(reference, rejected)
        loss = -functional.logsigmoid(0.1 * (weigh(policy, chosen) - weigh(policy, rejected) - expected)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


KINDS = {
    "gpt": gpt,
    "masked-language": masked_language,
    "translation": translation,
    "char-rnn": char_rnn,
    "manual-update": lambda: char_rnn(by_hand=True),
    "packed-gru": packed_gru,
    "embedding-bag": embedding_bag,
    "sparse-embedding": sparse_embedding,
    "mixture-of-experts": mixture_of_experts,
    "connectionist": connectionist,
    "lora": lora,
    "preference": preference,
}

if __name__ == "__main__":
    parts.run_kind(KINDS)
