"""Stable Diffusion of diffusers with random weights: text to image with guidance, VAE slices."""

import torch
from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionPipeline
from diffusers import UNet2DConditionModel as UNet
from tiny import tokenizer
from transformers import CLIPTextConfig, CLIPTextModel

torch.manual_seed(0)
words = tokenizer()
words.model_max_length = 32
text = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
)
unet = UNet(
    sample_size=32, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=128,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), norm_num_groups=16,
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
)  # fmt: skip
vae = AutoencoderKL(
    block_out_channels=(32, 64, 64), layers_per_block=1, latent_channels=4,
    down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
)  # fmt: skip
pipeline = StableDiffusionPipeline(
    vae=vae, text_encoder=text, tokenizer=words, unet=unet, scheduler=EulerDiscreteScheduler(),
    safety_checker=None, feature_extractor=None, image_encoder=None, requires_safety_checker=False,
).to("cuda", torch.float16)  # fmt: skip
pipeline.enable_attention_slicing()
pipeline.vae.enable_slicing()
pipeline.set_progress_bar_config(disable=True)
images = pipeline(
    ["word1 word2 word3"] * 2, num_inference_steps=4, guidance_scale=7.5,
    generator=torch.Generator("cuda").manual_seed(1),
).images  # fmt: skip
print([image.size for image in images])
