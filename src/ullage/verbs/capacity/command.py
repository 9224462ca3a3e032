"""`ullage capacity`: estimates what a GPU holds of what is served."""

from __future__ import annotations

from ullage.verbs.capacity.options import CapacityOptions
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output


@command(
    most_used=("gpu", "users", "context", "traffic"),
)
def capacity_command(options: CapacityOptions, output: Output) -> int:
    """Estimate what a GPU holds of MODEL when it is served, from its configuration, without torch.

    \b
    ullage capacity llama-3.1-8b --gpu l40s --context 32768 --users 4
    ullage capacity llama-3.1-8b --gpu l40s --traffic azure-conv:rate=2,duration=10m
    ullage capacity whisper-large-v3 --users 32 --max-seqs 8 --gpu l4
    ullage capacity sd15-unet sd-vae clip-vit-l14 --gpu rtx-4090
    ullage capacity ivfpq:vectors=100M,width=768 --gpu l4

    MODEL is found as by `ullage estimate`. Of a text model: its cache, users and context; with
    --traffic a forecast of preemptions and latencies. Of a model like Whisper: streams of speech;
    with --engine it is served as a text model. Of a denoiser with PARTs, its VAE and its text
    encoder: pictures. Or an index of embeddings: flat, hnsw, ivf or ivfpq with its settings.

    Exits with 0, or with 1 if even the lower bound does not fit on the GPU, or some requests of the
    traffic can never be answered.
    """
    from ullage.verbs.capacity.function import capacity

    output.check(".html")
    answer = capacity.act(options)
    return output.give(answer)
