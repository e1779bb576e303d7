"""DiffusionModelDebugger on real diffusers pipelines, built from their configs with random weights."""

import json
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from tdbg import DiffusionModelDebugger, TensorInfo

diffusers = pytest.importorskip("diffusers")


def make_unet() -> nn.Module:
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )


@pytest.fixture(scope="module")
def pipeline():
    torch.manual_seed(0)
    built = diffusers.DDPMPipeline(make_unet(), diffusers.DDPMScheduler(num_train_timesteps=10))
    built.set_progress_bar_config(disable=True)
    return built


@pytest.fixture(scope="module")
def text_pipeline():
    """Stable Diffusion's classes, tiny; prompts are given as embeddings."""
    torch.manual_seed(0)
    conditioned = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        cross_attention_dim=8,
        attention_head_dim=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = diffusers.StableDiffusionPipeline(
            vae=diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4),
            text_encoder=None,
            tokenizer=None,
            unet=conditioned,
            scheduler=diffusers.DDIMScheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    built.set_progress_bar_config(disable=True)
    return built


def denoise_sample(pipeline, debugger, steps: int = 4, spoil=lambda step, latents: latents) -> list[dict]:
    """The denoising loop of a DDPM by hand."""
    found = []
    pipeline.scheduler.set_timesteps(steps)
    latents = torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        for step, t in enumerate(pipeline.scheduler.timesteps):
            latents = pipeline.scheduler.step(pipeline.unet(latents, t).sample, t, latents).prev_sample
            found.append(debugger.monitor_diffusion_step(pipeline, step, spoil(step, latents)))
    return found


def test_what_a_pipeline_is_made_of(pipeline):
    found = DiffusionModelDebugger("advanced").analyze_diffusion_pipeline(pipeline)
    parameters = sum(p.numel() for p in pipeline.unet.parameters())
    assert found["total_parameters"] == parameters and found["memory_usage"] == 4 * parameters
    assert set(found["components"]) == {"unet", "scheduler"}
    assert found["components"]["scheduler"] == {"class": "DDPMScheduler"}
    about = found["components"]["unet"]
    assert (about["class"], about["parameters"], about["dtype"]) == ("UNet2DModel", parameters, "float32")
    assert (about["device"], about["finite"], about["memory_usage"]) == ("cpu", True, 4 * parameters)
    json.dumps(found)


def test_several_models_and_parts_that_are_left_out(text_pipeline):
    found = DiffusionModelDebugger().analyze_diffusion_pipeline(text_pipeline)
    assert set(found["components"]) == {"vae", "unet", "scheduler"}
    each = [sum(p.numel() for p in part.parameters()) for part in (text_pipeline.vae, text_pipeline.unet)]
    assert found["total_parameters"] == sum(each)
    assert found["components"]["vae"]["finite"] is None, "basic reads no parameter"


def test_a_bad_weight_is_found(pipeline):
    weight = pipeline.unet.conv_in.weight.data
    kept, weight[0] = weight.clone(), math.nan
    try:
        debugger = DiffusionModelDebugger("advanced")
        found = debugger.analyze_diffusion_pipeline(pipeline)
        assert found["components"]["unet"]["finite"] is False
        assert "conv_in.weight" in debugger.debug_history[0]["text"]
    finally:
        weight.copy_(kept)


def test_healthy_steps(pipeline):
    debugger = DiffusionModelDebugger()
    found = denoise_sample(pipeline, debugger)
    assert [row["step"] for row in found] == [0, 1, 2, 3]
    assert set(found[0]) == {"step", "timestamp", "latents_analysis", "anomalies"}
    info = found[0]["latents_analysis"]
    assert isinstance(info, TensorInfo) and info.shape == (1, 1, 8, 8) and info.std_value > 0
    assert all(row["anomalies"] == [] for row in found) and not debugger.debug_history


def spoil_latents(latents: Tensor) -> Tensor:
    spoilt = latents.clone()
    spoilt[0, 0, 0, 0] = math.nan
    return spoilt


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_latents, "1 NaN in latents"),
        (lambda latents: latents * 1e4, "the spread of the latents grew to"),
        (torch.zeros_like, "the latents have lost all spread"),
    ],
    ids=["nan", "grew", "collapsed"],
)
def test_every_anomaly(pipeline, spoil, why):
    debugger = DiffusionModelDebugger()
    found = denoise_sample(pipeline, debugger, spoil=lambda step, latents: spoil(latents) if step == 2 else latents)
    assert [len(row["anomalies"]) for row in found[:3]] == [0, 0, 1]
    assert found[2]["anomalies"][0].startswith(why)
    assert debugger.debug_history[0]["step"] == 2 and debugger.debug_history[0]["pipeline"] == "DDPMPipeline"


def test_step_0_begins_a_new_sample():
    debugger = DiffusionModelDebugger()
    for scale in (1.0, 1e3, 1e-9):  # schedulers differ in the spread they begin with
        for step in range(3):
            assert debugger.monitor_diffusion_step(None, step, scale * torch.randn(1, 1, 8, 8))["anomalies"] == []


def test_a_model_under_two_names_counts_once():
    class Pipeline:
        model = nn.Linear(8, 8)
        components = {"unet": model, "teacher": model, "name": "x"}

    found = DiffusionModelDebugger().analyze_diffusion_pipeline(Pipeline())
    assert (found["total_parameters"], found["memory_usage"]) == (72, 288)
    assert set(found["components"]) == {"unet", "teacher", "name"}


def test_as_a_callback_of_the_pipeline(text_pipeline):
    debugger = DiffusionModelDebugger("extreme")
    prompt = torch.randn(1, 4, 8)

    def images(callback) -> Tensor:
        return text_pipeline(
            prompt_embeds=prompt,
            negative_prompt_embeds=prompt,
            num_inference_steps=3,
            height=8,
            width=8,
            output_type="latent",
            generator=torch.Generator().manual_seed(0),
            callback_on_step_end=callback,
        ).images

    watched, bare = images(debugger.on_step_end), images(None)
    assert torch.equal(watched, bare), "nothing is changed"
    assert len(debugger.tensor_history["latents"]) == 3


def test_wrong_use():
    debugger = DiffusionModelDebugger()
    with pytest.raises(TypeError, match="has no components"):
        debugger.analyze_diffusion_pipeline(3)
    with pytest.raises(TypeError, match="latents is a list"):
        debugger.monitor_diffusion_step(None, 0, [1.0])
    assert debugger.on_step_end(None, 0, 0, {"x": 1}) == {"x": 1}
    off = DiffusionModelDebugger("off")
    assert off.monitor_diffusion_step(None, 0, torch.tensor([math.nan]))["anomalies"] == []


class Custom:
    """A pipeline of one's own, without a mapping of its components."""

    def __init__(self) -> None:
        self.unet, self._vae, self.scheduler = nn.Linear(4, 4), nn.Linear(2, 2), diffusers.DDPMScheduler()
        self.steps, self.guidance, self.names = 4, 7.5, ["a"]


class Joined(nn.Module):
    """A pipeline that is a module, with a parameter of its own and a part under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = nn.Linear(4, 4)
        self.ema = self.unet
        self.scale = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("pipeline", "parts", "parameters"),
    [
        (Custom(), {"unet", "vae", "scheduler"}, 26),
        (Joined(), {"unet", "ema"}, 23),
        (nn.Linear(4, 4), {"model"}, 20),
        ({"unet": nn.Linear(4, 4), "tokenizer": None}, {"unet"}, 20),
    ],
    ids=["object", "module", "layer", "mapping"],
)
def test_a_pipeline_without_components(pipeline, parts, parameters):
    found = DiffusionModelDebugger("advanced").analyze_diffusion_pipeline(pipeline)
    assert set(found["components"]) == parts or set(found["components"]) == parts - {"ema"}
    assert (found["total_parameters"], found["memory_usage"]) == (parameters, 4 * parameters)


def test_latents_may_be_what_a_model_or_a_scheduler_returned(pipeline):
    debugger = DiffusionModelDebugger()
    noise = torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        out = pipeline.unet(noise, 3)
        stepped = diffusers.DDPMScheduler(num_train_timesteps=10).step(out.sample, 3, noise)
        decoded = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4).encode(
            torch.randn(1, 3, 8, 8)
        )
    for given, tensor in (
        (out, out.sample),
        (out.to_tuple(), out.sample),
        (stepped, stepped.prev_sample),
        ({"latents": noise, "noise": out.sample}, noise),
        ([noise, out.sample], noise),
        (noise.numpy(), noise),
    ):
        info = debugger.monitor_diffusion_step(pipeline, 0, given)["latents_analysis"]
        assert info.shape == tensor.shape
        assert info.mean_value == pytest.approx(tensor.mean().item(), rel=1e-4, abs=1e-5)
    with pytest.raises(TypeError, match="holds no tensor"):
        debugger.monitor_diffusion_step(pipeline, 0, decoded.latent_dist.sample)
    spoilt = debugger.monitor_diffusion_step(
        pipeline, 1, diffusers.models.unets.unet_2d.UNet2DOutput(spoil_latents(noise))
    )
    assert spoilt["anomalies"] == ["1 NaN in latents"]
