"""Attention against softmax(q k / sqrt(E)) worked out here, and the model's own output, bit by bit.

Shapes: B batch, H heads, L queries, S keys, E features of a head.
"""

import math
import sys
import threading
import types

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from tdbg.debuggers import Attention
from tests.debuggers.conftest import Gives

H, E = 2, 4
WIDTH = H * E


def compute_attention(q, k, mask=None, scale=None):
    """In float64, row by row. mask: True where to look."""
    q, k = q.detach().double(), k.detach().double()
    scores = torch.einsum("...le,...se->...ls", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    weights = scores.exp()
    if mask is not None:
        weights = weights * mask
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)


def assert_close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def run_attention(model, layer, *args, same=True, **kwargs):
    """What Attention says; the model's output must be the same with and without it."""
    debugger = Attention(layer, **kwargs.pop("how", {}))
    state = torch.get_rng_state()
    expected = model(*args, **kwargs)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    with debugger.attach(model):
        output = model(*args, **kwargs)
        assert torch.equal(torch.get_rng_state(), after)
        found = debugger({}, model)
        assert debugger({}, model) is None
    first = [value[0] if isinstance(value, tuple) else value for value in (output, expected)]
    assert not same or torch.equal(*first)
    return found


# scaled_dot_product_attention inside a layer


class Inside(nn.Module):
    """A layer that calls scaled_dot_product_attention with what it is given."""

    def __init__(self, function=None):
        super().__init__()
        self.attn, self.function = nn.Identity(), function

        def forward(q, k, v, **kwargs):
            return (function or F.scaled_dot_product_attention)(q, k, v, **kwargs)

        self.attn.forward = forward

    def forward(self, *args, **kwargs):
        return self.attn(*args, **kwargs)


@pytest.fixture
def random_qkv():
    return torch.randn(3, H, 5, E), torch.randn(3, H, 7, E), torch.randn(3, H, 7, E)


def test_plain(random_qkv):
    found = run_attention(Inside(), "attn", *random_qkv)
    expected = compute_attention(*random_qkv[:2])
    assert set(found) == {"layer_name", "source", "attention_map", "attention_stats"}
    assert (found["layer_name"], found["source"]) == ("attn", "scaled_dot_product_attention")
    assert_close(found["attention_map"], expected)
    stats = found["attention_stats"]
    assert set(stats) == {"entropy", "max_attention", "attention_distribution"}
    assert stats["entropy"] == pytest.approx(-(expected * (expected + 1e-8).log()).sum(-1).mean().item(), rel=1e-5)
    assert stats["max_attention"] == pytest.approx(expected.max().item(), rel=1e-5)
    assert_close(stats["attention_distribution"], expected.mean(0))


def test_masks(random_qkv):
    q, k, v = random_qkv
    look = torch.rand(3, 1, 5, 7) > 0.4
    look[0, 0, 0] = False  # a row that may look at nothing
    found = run_attention(Inside(), "attn", q, k, v, attn_mask=look)
    assert_close(found["attention_map"], compute_attention(q, k, look))
    assert found["attention_map"][0, :, 0].abs().sum() == 0
    added = torch.randn(5, 7)
    assert_close(
        run_attention(Inside(), "attn", q, k, v, attn_mask=added)["attention_map"],
        compute_attention(q, k, added.double().exp()),
    )
    causal = torch.ones(5, 7).tril().bool()
    found, expected = run_attention(Inside(), "attn", q, k, v, is_causal=True), compute_attention(q, k, causal)
    assert_close(found["attention_map"], expected)
    entropy = -(expected * expected.clamp(min=1e-30).log()).sum(-1).mean().item()
    assert found["attention_stats"]["entropy"] == pytest.approx(entropy, abs=1e-5), "where weights are 0 too"
    lower = torch.ones(5, 7).tril(2).bool()
    assert_close(
        run_attention(Inside(), "attn", q, k, v, attn_mask=causal_lower_right(5, 7))["attention_map"],
        compute_attention(q, k, lower),
    )


def test_scale_and_groups(random_qkv):
    q, k, v = random_qkv
    assert_close(
        run_attention(Inside(), "attn", q, k, v, scale=0.1)["attention_map"], compute_attention(q, k, scale=0.1)
    )
    q4 = torch.randn(3, 4, 5, E)
    found = run_attention(Inside(), "attn", q4, k, v, enable_gqa=True)["attention_map"]
    assert_close(found, torch.stack([compute_attention(q4[:, head], k[:, head // 2]) for head in range(4)], dim=1))


def test_dropout_is_noted_and_left_out(random_qkv):
    q, k, v = random_qkv
    found = run_attention(Inside(), "attn", q, k, v, dropout_p=0.5)
    assert found["dropout_p"] == 0.5
    assert_close(found["attention_map"], compute_attention(q, k))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64))
def test_dtypes(random_qkv, dtype):
    q, k, v = (part.to(dtype) for part in random_qkv)
    found = run_attention(Inside(), "attn", q, k, v)["attention_map"]
    assert found.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert_close(found, compute_attention(q, k))


def test_autocast(random_qkv):
    q, k, v = random_qkv
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(run_attention(Inside(), "attn", q, k, v)["attention_map"], compute_attention(q, k), 1e-5)


@pytest.mark.parametrize(
    "mode", (torch.enable_grad, torch.no_grad, torch.inference_mode), ids=lambda mode: mode.__name__
)
def test_modes(random_qkv, mode):
    q, k, v = (part.requires_grad_() for part in random_qkv)
    with mode():
        found = run_attention(Inside(), "attn", q, k, v)["attention_map"]
    assert not found.requires_grad and not found.is_inference()
    assert_close(found, compute_attention(q, k))


def test_a_function_that_was_imported_by_name(random_qkv):
    module = types.ModuleType("somebodys_module")
    module.sdpa = F.scaled_dot_product_attention
    sys.modules[module.__name__] = module
    try:
        model = Inside(lambda *args, **kwargs: module.sdpa(*args, **kwargs))
        assert_close(run_attention(model, "attn", *random_qkv)["attention_map"], compute_attention(*random_qkv[:2]))
        assert module.sdpa is F.scaled_dot_product_attention, "put back there too"
    finally:
        del sys.modules[module.__name__]


def test_weights_that_are_too_large(random_qkv):
    found = run_attention(Inside(), "attn", *random_qkv, how={"limit_mb": 0.0001})
    assert "attention_map" not in found and "more than limit_mb=0.0001" in found["note"]


def test_several_calls_in_a_layer_and_several_of_the_layer(random_qkv):
    q, k, v = random_qkv

    def twice(q, k, v):
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v)

    found = run_attention(Inside(twice), "attn", q, k, v)
    assert_close(found["attention_map"], compute_attention(q, k, torch.ones(5, 7).tril().bool()))
    assert_close(found["others"]["1"]["attention_map"], compute_attention(q, k))

    class Again(Inside):
        def forward(self, q, k, v):
            self.attn(q, k, v)
            return self.attn(q * 2, k, v)

    found = run_attention(Again(), "attn", q, k, v)
    assert_close(found["attention_map"], compute_attention(q * 2, k))
    assert_close(found["earlier_calls"][0]["attention_map"], compute_attention(q, k))


def test_inside_a_function_transform(random_qkv):
    found = run_attention(Inside(torch.func.vmap(F.scaled_dot_product_attention)), "attn", *random_qkv)
    assert found["source"] == "output" and "rows do not sum to 1" in found["note"], "what is batched has no values"


def test_attention_outside_of_the_layer_is_not_its_own(random_qkv):
    class Model(Inside):
        def forward(self, q, k, v):
            F.scaled_dot_product_attention(q, k, v)
            return self.attn(q, k, v, is_causal=True)

    found = run_attention(Model(), "attn", *random_qkv)
    assert "others" not in found and found["attention_map"][0, 0, 0, 1] == 0


def test_a_layer_that_fails(random_qkv):
    def fails(q, k, v):
        F.scaled_dot_product_attention(q, k, v)
        raise ArithmeticError("mine")

    model, debugger = Inside(fails), Attention("attn")
    with debugger.attach(model):
        with pytest.raises(ArithmeticError, match="mine"):
            model(*random_qkv)
        assert debugger._running.layers == [] and debugger({}, model) is None


def test_threads(random_qkv):
    model, debugger, wrong, begin = Inside(), Attention("attn"), [], threading.Barrier(4)

    def work(number):
        torch.manual_seed(number)
        begin.wait()
        for _ in range(20):
            q, k, v = (torch.randn(1, 1, 3 + number, E) for _ in range(3))
            model(q, k, v)
            found = debugger({}, model)
            if (
                found is None
                or "others" in found
                or "earlier_calls" in found
                or not torch.allclose(found["attention_map"].double(), compute_attention(q, k), atol=1e-5)
            ):
                wrong.append(number)

    with debugger.attach(model):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# nn.MultiheadAttention


class MultiHead(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.mha = nn.MultiheadAttention(WIDTH, H, **how)

    def forward(self, x, **kwargs):
        return self.mha(x, x, x, **kwargs)


def project_queries(mha, x_BLF):
    """Queries and keys of self-attention, BHLE."""
    weight, bias = mha.in_proj_weight.detach(), mha.in_proj_bias.detach()
    rows = x_BLF @ weight.T + bias
    return [part.unflatten(-1, (H, E)).transpose(1, 2) for part in rows.chunk(3, dim=-1)][:2]


@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("need_weights", (False, True))
@pytest.mark.parametrize("average", (False, True))
@pytest.mark.parametrize("mode", (torch.enable_grad, torch.no_grad), ids=lambda mode: mode.__name__)
def test_multi_head_attention(batch_first, training, need_weights, average, mode):
    model = MultiHead(batch_first=batch_first, dropout=0.3).train(training)
    nn.init.normal_(model.mha.in_proj_bias)
    x_BLF = torch.randn(3, 5, WIDTH)
    x = x_BLF if batch_first else x_BLF.transpose(0, 1)
    expected = compute_attention(*project_queries(model.mha, x_BLF))
    with mode():
        how = {"need_weights": need_weights, "average_attn_weights": average}
        found = run_attention(model, "mha", x, **how)
        heads = run_attention(model, "mha", x, **how, how={"per_head": True})
    assert_close(found["attention_map"], expected.mean(1) if average else expected)
    assert_close(heads["attention_map"], expected)
    assert found["source"] == "MultiheadAttention" and found.get("dropout_p") == (0.3 if training else None)


def test_masks_of_multi_head_attention():
    model, x_LBF = MultiHead(), torch.randn(5, 3, WIDTH)
    padding_BS = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    found = run_attention(
        model, "mha", x_LBF, key_padding_mask=padding_BS, attn_mask=causal, is_causal=True, need_weights=False
    )
    look = (~padding_BS)[:, None, None] & torch.ones(5, 5).tril().bool()
    assert_close(
        found["attention_map"], compute_attention(*project_queries(model.mha, x_LBF.transpose(0, 1)), look).mean(1)
    )


def test_cross_attention_unbatched_and_too_large():
    mha = nn.MultiheadAttention(WIDTH, H, kdim=3, vdim=3)
    q_LF, k_SF = torch.randn(4, WIDTH), torch.randn(6, 3)
    model = nn.Sequential()
    model.mha = mha
    model.forward = lambda q, k: mha(q, k, k, need_weights=False)[0]
    bias = mha.in_proj_bias.detach().chunk(3)
    q = (q_LF @ mha.q_proj_weight.T + bias[0]).unflatten(-1, (H, E)).transpose(0, 1)
    k = (k_SF @ mha.k_proj_weight.T + bias[1]).unflatten(-1, (H, E)).transpose(0, 1)
    assert_close(run_attention(model, "mha", q_LF, k_SF)["attention_map"], compute_attention(q, k).mean(0))
    assert "limit_mb" in run_attention(model, "mha", q_LF, k_SF, how={"limit_mb": 1e-4})["note"]


@pytest.mark.parametrize("layer", ("layers.1", "layers.1.self_attn"))
@pytest.mark.parametrize("norm_first", (False, True))
@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.filterwarnings("ignore")
def test_the_fused_path_of_torchs_encoder(layer, norm_first, padded, causal):
    """In inference it computes in one function, and leaves that path when a module in it carries a hook."""
    block = nn.TransformerEncoderLayer(WIDTH, H, 16, batch_first=True, norm_first=norm_first)
    model, x_BLF = nn.TransformerEncoder(block, 2).eval(), torch.randn(2, 5, WIDTH)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    padding_BS = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    mask = torch.ones(5, 5).triu(1).bool() if causal else None
    with torch.no_grad():
        found = run_attention(model, layer, x_BLF, mask=mask, src_key_padding_mask=padding_BS, how={"per_head": True})
    slow = model(x_BLF, mask=mask, src_key_padding_mask=padding_BS)  # with gradients: not fused
    x1_BLF = model.layers[0](x_BLF, src_mask=mask, src_key_padding_mask=padding_BS).detach()
    q, k = project_queries(model.layers[1].self_attn, model.layers[1].norm1(x1_BLF) if norm_first else x1_BLF)
    look = torch.ones(5, 5).tril().bool() if causal else torch.ones(5, 5).bool()
    look = look & ~padding_BS[:, None, None] if padded else look
    expected, keep = compute_attention(q, k, look), [5, 3 if padded else 5]
    for row, length in enumerate(keep):  # what padding looks at means nothing
        assert_close(found["attention_map"][row, :, :length], expected[row, :, :length], 1e-4)
    assert slow.requires_grad and "earlier_calls" not in found, "the first layer's is not its own"


@pytest.mark.filterwarnings("ignore")
def test_nested_inputs_of_the_fused_path():
    layer = nn.TransformerEncoderLayer(WIDTH, H, 16, batch_first=True, norm_first=True).eval()
    rows = [torch.randn(3, WIDTH), torch.randn(5, WIDTH)]
    debugger = Attention("", per_head=True)
    with torch.no_grad(), debugger.attach(layer):
        layer(torch.nested.nested_tensor(rows))
        found = debugger({}, layer)["attention_map"]
    for row, x_LF in enumerate(rows):
        length = len(x_LF)
        assert_close(
            found[row, :, :length, :length],
            compute_attention(*project_queries(layer.self_attn, layer.norm1(x_LF)[None]))[0],
            1e-4,
        )
        assert found[row, :, :length, length:].abs().sum() == 0


def test_a_subclass_with_a_forward_of_its_own():
    class Own(nn.MultiheadAttention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **{**kwargs, "need_weights": False})

    model, x_LBF = MultiHead(), torch.randn(5, 3, WIDTH)
    model.mha = Own(WIDTH, H)
    assert_close(
        run_attention(model, "mha", x_LBF)["attention_map"],
        compute_attention(*project_queries(model.mha, x_LBF.transpose(0, 1))).mean(1),
    )


def test_a_block_and_a_decoder():
    model = nn.TransformerDecoderLayer(WIDTH, H, 16, batch_first=True).eval()
    x_BLF, memory_BSF = torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH)
    found = run_attention(model, "", x_BLF, memory_BSF)
    assert found["attention_map"].shape == (2, 5, 5) and found["others"]["1"]["attention_map"].shape == (2, 5, 7)
    assert_close(found["attention_map"], compute_attention(*project_queries(model.self_attn, x_BLF)).mean(1))


# weights in an output


def make_weights(*shape):
    return torch.randn(*shape).softmax(-1)


def test_a_plain_attention_tensor():
    weights_BLS = make_weights(2, 3, 4)
    found = run_attention(Gives(), "layer", weights_BLS)
    assert torch.equal(found["attention_map"], weights_BLS) and found["source"] == "output" and "note" not in found
    odd = run_attention(Gives(), "layer", torch.randn(2, 3, 4))
    assert "rows do not sum to 1" in odd["note"] and "attention_stats" in odd


@pytest.mark.parametrize(
    "pack",
    (
        lambda out, weights: (out, weights),
        lambda out, weights: (out, (out, out), weights),
        lambda out, weights: (out, weights, (out, out)),
        lambda out, weights: {"hidden": out, "attentions": weights},
        lambda out, weights: (out, weights * 2),  # dropped out and scaled: the second of a pair, as it is the custom
    ),
)
def test_weights_beside_the_output(pack):
    out, weights = torch.randn(2, 5, WIDTH), make_weights(2, H, 5, 5)
    value = pack(out, weights)
    found = run_attention(Gives(), "layer", value, same=False)
    assert found["attention_map"].shape == weights.shape
    torch.testing.assert_close(found["attention_map"] / found["attention_map"].sum(-1, keepdim=True), weights)


def test_hooked_by_hand():
    layer, debugger = nn.MultiheadAttention(WIDTH, H), Attention("")
    handle = layer.register_forward_hook(debugger.forward_hook_fn)
    x_LBF = torch.randn(5, 3, WIDTH)
    _, weights = layer(x_LBF, x_LBF, x_LBF)
    assert torch.equal(debugger({}, layer)["attention_map"], weights.detach())
    layer(x_LBF, x_LBF, x_LBF, need_weights=False)
    assert "no attention weights" in debugger({}, layer)["note"]
    handle.remove()


def test_a_layer_without_attention():
    found = run_attention(Gives(), "layer", (torch.randn(2, 3), None), same=False)
    assert set(found) == {"layer_name", "note"} and found["note"].startswith("no attention weights")


def test_hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=H, intermediate_size=16
    )
    ids_BT = torch.randint(0, 20, (2, 6))
    maps = {}
    for kind in ("sdpa", "eager"):
        torch.manual_seed(0)
        config._attn_implementation = kind
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
        debugger = Attention("encoder.layer.1.attention.self")
        with debugger.attach(model), torch.no_grad():
            model(input_ids=ids_BT)
            maps[kind] = debugger({}, model)
    assert maps["sdpa"]["source"] == "scaled_dot_product_attention" and maps["eager"]["source"] == "output"
    assert_close(maps["sdpa"]["attention_map"], maps["eager"]["attention_map"])
    assert maps["sdpa"]["attention_map"].shape == (2, H, 6, 6)


# compiled, twice, and gone


def test_a_compiled_model(random_qkv):
    q, k, v = random_qkv
    counter = CompileCounter()
    compiled, debugger = torch.compile(Inside(), backend=counter), Attention("attn")
    compiled(q, k, v)
    frames = counter.frame_count
    with debugger.attach(compiled):
        compiled(q, k, v)
        assert_close(debugger({}, compiled)["attention_map"], compute_attention(q, k))
    compiled(q, k, v)
    assert counter.frame_count == frames


def test_another_model_compiled_meanwhile_has_the_same_graph(random_qkv):
    counter, bare = CompileCounter(), CompileCounter()
    torch.compile(Inside(), backend=bare)(*random_qkv)
    with Attention("attn").attach(Inside()):
        torch.compile(Inside(), backend=counter)(*random_qkv)
    assert (counter.frame_count, counter.op_count) == (bare.frame_count, bare.op_count) and bare.op_count > 0


def test_two_debuggers_and_attached_twice(random_qkv, count_hooks):
    model, one, two = Inside(), Attention("attn"), Attention("attn")
    with one.attach(model), two.attach(model):
        model(*random_qkv)
        assert torch.equal(one({}, model)["attention_map"], two({}, model)["attention_map"])
        with pytest.raises(Exception, match="already attached to 'attn'"):
            one.attach(model)
    assert count_hooks(model) == 0
    mha = MultiHead()
    with one.__class__("mha").attach(mha) as hooks:
        assert count_hooks(mha.mha) == 0
        hooks.remove()
    again = Attention("mha")
    with again.attach(mha):
        with pytest.raises(Exception, match="already attached to 'mha'"):
            again.attach(mha)
        assert again.missing(mha).startswith("not executed: 'mha' did not run")
    assert "is not attached" in again.missing(mha)
