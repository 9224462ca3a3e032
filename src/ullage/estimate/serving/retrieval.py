"""Retrieval: how much memory an index of embeddings takes, and a request's passages of context."""

from __future__ import annotations

from ullage.errors import SpecError

__all__ = ["flat_bytes", "hnsw_bytes", "ivf_pq_bytes", "passages_that_fit", "prompt_tokens"]


def flat_bytes(vectors: int, width: int, element: int = 4) -> int:
    """A flat index: every vector as it is.

    Counts: vectors x width x element. Ignores: ids and payloads. Error: none.
    Source: faiss, IndexFlat.
    """
    _check(vectors=vectors, width=width, element=element)
    return vectors * width * element


def hnsw_bytes(vectors: int, width: int, links: int = 32, element: int = 4) -> int:
    """A graph index: the vectors, and their neighbours.

    Counts: 2 x links neighbours of 4 bytes on the lowest level, and links on the levels above, in
    which a vector is with probability 1 / links: 1 / (links - 1) levels on average.
    Ignores: headroom for growth and deletions (databases advise 20 %); 16 bytes a vector of levels
    and offsets are counted.
    Error: 1 % of the links, as levels are drawn at random.
    Source: Malkov and Yashunin 2016, arXiv:1603.09320; faiss, impl/HNSW.cpp.
    """
    _check(links=links - 1)
    lowest = 2 * links * 4
    above = links * 4 / (links - 1)
    return flat_bytes(vectors, width, element) + round(vectors * (lowest + above + 16))


def ivf_pq_bytes(
    vectors: int, width: int, *, lists: int, codes: int = 64, bits: int = 8, id_bytes: int = 8
) -> int:
    """Product codes in inverted lists.

    Counts: codes x bits and an id for each vector, the lists' centroids, and the codebooks.
    Ignores: the room that lists have to grow (up to 2x while they are filled); tables of distances
    of a query (codes x 2^bits x 4 bytes each).
    Error: none once the lists are trimmed.
    Source: Jegou et al. 2011, doi:10.1109/TPAMI.2010.57; faiss, IndexIVFPQ.
    """
    _check(vectors=vectors, width=width, lists=lists, codes=codes, bits=bits)
    if width % codes:
        raise SpecError(f"codes={codes} does not divide width={width}; take a divisor")
    each = (codes * bits + 7) // 8 + id_bytes
    return vectors * each + lists * width * 4 + (1 << bits) * width * 4


def prompt_tokens(passages: int, passage_tokens: int, question: int = 0, answer: int = 0) -> int:
    """The context of a request: its passages, the question with its instructions, the answer.

    Counts: passages x their tokens, and the two. Ignores: separators of a template. Error: none
    beside these. Source: a sum, derived here.
    """
    return passages * passage_tokens + question + answer


def passages_that_fit(context: int, passage_tokens: int, question: int = 0, answer: int = 0) -> int:
    """Whole passages that a context window holds beside question and answer.

    Counts: passages as long as the longest. Ignores: separators of a template. Error: too few where
    passages are shorter. Source: prompt_tokens solved for passages, derived here.
    """
    _check(passage_tokens=passage_tokens)
    return max(0, context - question - answer) // passage_tokens


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise SpecError(f"{name}: found {size}, expected at least 1")
