"""segment-anything with random weights: all masks of an image, then those of a click."""

import numpy as np
import torch
from segment_anything import SamAutomaticMaskGenerator, SamPredictor
from segment_anything.modeling import (
    ImageEncoderViT,
    MaskDecoder,
    PromptEncoder,
    Sam,
    TwoWayTransformer,
)

torch.manual_seed(0)
encoder = ImageEncoderViT(
    img_size=512, patch_size=16, embed_dim=128, depth=2, num_heads=4, out_chans=256,
    use_rel_pos=True, window_size=14, global_attn_indexes=(1,),
)  # fmt: skip
prompts = PromptEncoder(
    embed_dim=256, image_embedding_size=(32, 32), input_image_size=(512, 512), mask_in_chans=16
)
decoder = MaskDecoder(
    num_multimask_outputs=3, transformer_dim=256,
    transformer=TwoWayTransformer(depth=2, embedding_dim=256, mlp_dim=512, num_heads=8),
)  # fmt: skip
sam = Sam(encoder, prompts, decoder).to("cuda").eval()
image = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)
predictor = SamPredictor(sam)
predictor.set_image(image)
masks, scores, _ = predictor.predict(
    point_coords=np.array([[50, 40]]), point_labels=np.array([1]), multimask_output=True
)
print(f"{len(masks)} masks of a click, best {scores.max():.2f}")
generator = SamAutomaticMaskGenerator(
    sam, points_per_side=4, pred_iou_thresh=0.0, stability_score_thresh=0.0
)
print(f"{len(generator.generate(image))} masks")
