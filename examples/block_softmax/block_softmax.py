"""An implementation of attention that lives outside mha-bench: softmax over blocks of queries."""

import torch

from harness.interface import AttentionImplementation, dense_keep


class BlockSoftmax(AttentionImplementation):
    """Naive attention, ``block`` queries at a time; every mask but an additive bias."""

    mask_features = frozenset(
        {"causal", "top_left", "bottom_right", "window", "key_padding", "keep"}
    )

    def __init__(self, block=64):
        self.block = block

    def mask_form(self, case):
        return case.config.mask.form_as_tensor

    def make_attend(self, case, masks):
        scale, block = case.config.scale, self.block
        keep = dense_keep(case.config, masks, case.device)

        def attend(q, k, v):  # this is what is timed
            rows = range(0, q.shape[2], block)
            return torch.cat([part(q, k, v, r) for r in rows], dim=2) if rows else q * 1

        def part(q, k, v, row):
            scores = (q[:, :, row : row + block] * scale) @ k.transpose(-2, -1)
            if keep is None:
                return torch.softmax(scores, dim=-1) @ v
            seen = keep if keep.shape[2] == 1 else keep[:, :, row : row + block]
            some = seen.any(dim=-1, keepdim=True)
            scores = scores.masked_fill(~seen & some, float("-inf"))
            return (torch.softmax(scores, dim=-1) @ v).masked_fill(~some, 0.0)

        return attend
