"""Many sequences' next rows, packed end to end for one pass over the device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crowfly_worker.kernels.attention import Span


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next rows of one sequence: a piece of its prompt, or its last token."""

    ids: Sequence[int]
    position: int  # of ids[0] in the sequence
    pages: Sequence[int]  # the sequence's, in order


@dataclass(frozen=True, slots=True)
class Batch:
    ids: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows]
    slots: Tensor  # int64 [rows]: where in the cache each row's key and value go
    spans: tuple[Span, ...]
    logit_rows: Tensor  # int64 [n]: rows whose logits are asked for


def pack(
    chunks: Iterable[Chunk], page_tokens: int, device: torch.device, *, all_rows: bool = False
) -> Batch:
    """The batch of `chunks`, in order; logits for each chunk's last row, or for all rows."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for chunk in chunks:
        rows = slice(len(ids), len(ids) + len(chunk.ids))
        stop = chunk.position + len(chunk.ids)
        ids += chunk.ids
        positions += range(chunk.position, stop)
        slots += (
            chunk.pages[at // page_tokens] * page_tokens + at % page_tokens
            for at in range(chunk.position, stop)
        )
        used = chunk.pages[: -(-stop // page_tokens)]
        spans.append(Span(rows, chunk.position, _run_or_ids(used, device)))
    wanted = range(len(ids)) if all_rows else (span.rows.stop - 1 for span in spans)
    return Batch(
        ids=torch.tensor(ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        spans=tuple(spans),
        logit_rows=torch.tensor(list(wanted), device=device),
    )


def _run_or_ids(pages: Sequence[int], device: torch.device) -> slice | Tensor:
    first = pages[0]
    if list(pages) == list(range(first, first + len(pages))):
        return slice(first, first + len(pages))
    return torch.tensor(pages, device=device)
