"""The names of the workloads, readable without torch, and the allocator setting of one of them."""

NAMES = (
    "mlp_fp32_adam",
    "gpt_bf16",
    "gpt_bf16_flash",
    "gpt_fp32",
    "gpt_fp16_scaler_fused",
    "gpt_bf16_forloop",
    "gpt_bf16_checkpoint",
    "gpt_bf16_accumulate4",
    "gpt_bf16_sgd",
    "gpt_bf16_expandable",
    "gpt_medium_bf16",
    "gpt_compiled",
    "hf_llama1b",
    "hf_llama1b_checkpoint",
    "hf_llama1b_eager",
    "hf_llama1b_fp32_amp",
    "hf_llama_generate",
    "hf_bert_base",
    "hf_bert_base_amp",
    "hf_t5_small",
    "hf_mixtral_small",
    "hf_whisper_small",
    "timm_resnet50_fp32",
    "timm_resnet50_amp_cl",
    "timm_resnet18_b128",
    "timm_vit_base_bf16",
    "timm_convnext_tiny",
    "timm_efficientnet_b0",
    "timm_resnet50_infer",
    "unet_bf16",
    "lstm_fp32",
)

# Values of PYTORCH_CUDA_ALLOC_CONF, which must stand before torch starts
ALLOC_CONF = {"gpt_bf16_expandable": "expandable_segments:True"}
