"""Makes images with diffusers' pipeline of random weights, and prints what is allocated.

ullage run --gpu h100-80gb --python VENV/bin/python -- diffusion_stages.py CASE

CASE is a JSON file: the configurations of "denoiser", "vae" and perhaps "text", "images", "side",
"offload" (none, model or sequential), "tiled" and "guided".
"""

import json
import sys
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel

STEPS = 2
FIGURES: dict[str, int] = {}


def watch(module: torch.nn.Module, name: str) -> None:
    """Notes the most that is allocated while a module runs."""
    forward = module.forward

    def watched(*arguments: object, **named: object) -> object:
        torch.cuda.reset_peak_memory_stats()
        result = forward(*arguments, **named)
        peak = torch.cuda.max_memory_allocated()
        FIGURES[name] = max(peak, FIGURES.get(name, 0))
        return result

    module.forward = watched


def build(case: dict) -> object:
    """The pipeline of a case, on the host."""
    vae = AutoencoderKL.from_config(case["vae"])
    scheduler = DDIMScheduler()
    if case["denoiser"]["_class_name"] == "DiTTransformer2DModel":
        return DiTPipeline(DiTTransformer2DModel.from_config(case["denoiser"]), vae, scheduler)
    text = CLIPTextModel(CLIPTextConfig(**case["text"]))
    unet = UNet2DConditionModel.from_config(case["denoiser"])
    return StableDiffusionPipeline(
        vae, text, None, unet, scheduler, None, None, requires_safety_checker=False
    )


@torch.no_grad()
def main() -> None:
    """Prints one line of JSON."""
    case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    pipeline = build(case).to(torch.float16)
    if case["tiled"]:
        pipeline.vae.enable_tiling()
    is_dit = isinstance(pipeline, DiTPipeline)
    watch(pipeline.transformer if is_dit else pipeline.unet, "denoiser")
    watch(pipeline.vae.decoder, "decoder")
    if not is_dit:
        watch(pipeline.text_encoder, "text")
    if case["offload"] == "none":
        pipeline.to("cuda")
    elif case["offload"] == "model":
        pipeline.enable_model_cpu_offload()
    else:
        pipeline.enable_sequential_cpu_offload()
    FIGURES["weights"] = torch.cuda.memory_allocated()
    images, scale = case["images"], 4.0 if case["guided"] else 1.0
    common = {"num_inference_steps": STEPS, "guidance_scale": scale, "output_type": "pt"}
    if is_dit:
        pipeline(class_labels=[0] * images, **common)
    else:
        ids = torch.zeros(1, 77, dtype=torch.long, device="cuda")
        embeds = [pipeline.text_encoder(ids)[0] for _ in range(2 if case["guided"] else 1)]
        pipeline(
            prompt_embeds=embeds[0], negative_prompt_embeds=embeds[-1],
            num_images_per_prompt=images, height=case["side"], width=case["side"], **common,
        )  # fmt: skip
    print("figures:", json.dumps(FIGURES), flush=True)


if __name__ == "__main__":
    main()
