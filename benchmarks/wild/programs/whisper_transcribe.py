"""openai-whisper with random weights: a transcription with beams, then with temperatures."""

import numpy as np
import torch
import whisper
from whisper.model import ModelDimensions, Whisper

torch.manual_seed(0)
dimensions = ModelDimensions(80, 1500, 128, 2, 2, 51865, 448, 128, 2, 2)
model = Whisper(dimensions)
heads = torch.zeros(2, 2, dtype=torch.bool)
heads[1] = True
model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
model = model.to("cuda")
audio = np.random.default_rng(0).normal(0, 0.1, 16_000 * 8).astype(np.float32)

segment = whisper.log_mel_spectrogram(whisper.pad_or_trim(audio)).to("cuda").half()
_, probabilities = model.detect_language(segment)
print("language", max(probabilities, key=probabilities.get))
options = whisper.DecodingOptions(beam_size=5, patience=2.0, sample_len=12, language="en")
result = whisper.decode(model, segment, options)
print(f"{len(result.tokens)} tokens by beams, avg_logprob {result.avg_logprob:.2f}")
print(f"compression {result.compression_ratio:.2f}, silent {result.no_speech_prob:.2f}")
whole = whisper.transcribe(
    model, audio, language="en", sample_len=12, temperature=(0.0, 0.4, 0.8), best_of=3
)
print(f"{len(whole['segments'])} segments")
