"""sentence-transformers: an encoder of one's own trained with in-batch negatives, then searched."""

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
    util,
)
from tiny import sentences, tokenizer
from transformers import BertConfig, BertModel

torch.manual_seed(0)
words = tokenizer()
config = BertConfig(
    vocab_size=len(words), hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
    intermediate_size=512,
)  # fmt: skip
BertModel(config).save_pretrained("encoder")
words.save_pretrained("encoder")
transformer = models.Transformer("encoder", max_seq_length=64)
pooling = models.Pooling(transformer.get_word_embedding_dimension(), "mean")
model = SentenceTransformer(modules=[transformer, pooling], device="cuda")
texts = sentences(48)
data = Dataset.from_dict({"anchor": texts, "positive": sentences(48, seed=1)})
args = SentenceTransformerTrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=1, fp16=True, logging_steps=1,
    save_strategy="no", report_to=[],
)  # fmt: skip
loss = losses.MultipleNegativesRankingLoss(model)
SentenceTransformerTrainer(model=model, args=args, train_dataset=data, loss=loss).train()
embeddings = model.encode(texts, convert_to_tensor=True)
hits = util.semantic_search(model.encode(texts[:3], convert_to_tensor=True), embeddings, top_k=5)
print([[hit["corpus_id"] for hit in row] for row in hits])
assert all(len({hit["corpus_id"] for hit in row}) == 5 for row in hits)
