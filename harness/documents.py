"""Where the documents of a block-diagonal mask begin and end: fixed shares, so that cost and inputs
agree without a tensor.
"""

from __future__ import annotations

# Ragged on purpose: packed documents never have equal lengths.
_SHARES = (0.1, 0.3, 0.2, 0.4)


def document_lengths(kv_seq_len: int) -> tuple[int, ...]:
    """Lengths of the documents packed into ``kv_seq_len`` key positions; they sum to it.

    A short sequence has fewer documents, none of them empty.
    """
    ends, share = [], 0.0
    for part in _SHARES:
        share += part
        ends.append(round(kv_seq_len * share))
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return tuple(length for length in lengths if length)
