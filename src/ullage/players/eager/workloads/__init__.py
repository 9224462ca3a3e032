"""Memory of what is served beside text: speech, pictures, indexes of embeddings.

passes.py         a forward pass played on tensors without values
answer.py         the record that every answer is
option_values.py  what a user writes, such as "hnsw:vectors=1000000,width=768"
"""
