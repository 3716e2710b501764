"""Converted recurrences: causal with mass one per point, or bidirectional without order."""

from __future__ import annotations

import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain

from ..cases import POINTS, OperatorCase

DOUBLE = {"measure": "counting", "dtype": torch.float64}


class CausalCase(OperatorCase):
    """Two layers of an LSTM with a trained initial state."""

    dim = 3
    plain = "causal"
    cross = permutes = False
    # torch.compile does not trace torch's LSTM.
    traced = False

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        layer = nn.LSTM(self.dim, 4, num_layers=2).double()
        state = tuple(nn.Parameter(torch.randn(2, 4, dtype=torch.float64)) for _ in range(2))
        return as_operator(layer, initial_state=state, **self.options)

    def domains(self) -> dict[str, Domain]:
        valid = torch.ones(2, POINTS, dtype=torch.bool)
        right, holes = valid.clone(), valid.clone()
        right[1, 4:] = False
        holes[0, [0, 3]] = False
        line = {
            name: Domain.line(POINTS, causal=True, valid=v, **DOUBLE)
            for name, v in {"p": right, "h": holes}.items()
        }
        short = Domain.collate(
            [Domain.line(n, causal=True, **DOUBLE) for n in (POINTS, POINTS - 2)]
        )
        return {
            "causal": Domain.line(POINTS, causal=True, **DOUBLE),
            "causal padded": line["p"],
            "causal holes": line["h"],
            "causal lengths": short,
            "causal shared": line["h"].replace(valid=holes[:1]),
        }


class TwoWayCase(OperatorCase):
    """Two layers of a bidirectional GRU without biases."""

    dim = 3
    plain = "lattice"
    cross = False
    permutes = False
    traced = False

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        return as_operator(
            nn.GRU(self.dim, 2, num_layers=2, bias=False, bidirectional=True).double()
        )

    def domains(self) -> dict[str, Domain]:
        valid = torch.ones(2, POINTS, dtype=torch.bool)
        valid[1, 4:] = False
        return {
            "lattice": Domain.line(POINTS, **DOUBLE),
            "padded": Domain.line(POINTS, valid=valid, **DOUBLE),
            "shared": Domain.line(POINTS, valid=valid[1:], **DOUBLE),
        }


CASES: list[OperatorCase] = [
    CausalCase("recurrence", "recurrence-lstm"),
    TwoWayCase("recurrence", "recurrence-gru-both-ways"),
]
