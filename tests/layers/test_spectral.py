"""Periodic kernels by their impulse response, and the spectral convolution of Fourier neural
operators.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError
from fredholm.layers.spectral import PeriodicKernel
from fredholm.operators import IntegralOperator

from ..tolerances import assert_close

SHAPES = [(5,), (4, 3), (2, 4, 3)]


def grid(*shape: int, dtype: torch.dtype = torch.float64) -> Domain:
    return Domain.grid(*shape, measure="counting", dtype=dtype)


def assert_same(operator, layer, u, domain):
    """Compare outputs and gradients of layer, fast form and explicit kernel."""
    u = u.requires_grad_()
    outputs = [
        layer(u.mT.unflatten(-1, domain.shape)).flatten(2).mT,
        operator(u, domain),
        operator.dense(u, domain),
    ]
    direction = torch.randn_like(outputs[0])
    inputs = [u, *layer.parameters()]
    expected, *found = [torch.autograd.grad(y, inputs, direction) for y in outputs]
    for name, output, gradients in zip(("fast", "dense"), outputs[1:], found):
        assert_close(output, outputs[0], name)
        for g, h in zip(gradients, expected):
            assert_close(
                torch.view_as_real(g) if g.is_complex() else g,
                torch.view_as_real(h) if h.is_complex() else h,
            )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_impulse_response_is_the_kernel(shape):
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 1](
        2, 3, 3, padding="same", padding_mode="circular"
    ).double()
    kernel = PeriodicKernel(layer, 2, 3, axes=len(shape))
    operator = IntegralOperator(2, kernel=kernel, out_dim=3, residual=False, projection=False)
    u = torch.randn(2, torch.Size(shape).numel(), 2).double()
    domain = grid(*shape)
    assert_same(operator, layer, u, domain)
    stencil = as_operator(layer)
    stencil.layer = None  # an integral with any measure, not the layer
    matrix = operator.kernel_matrix(u, domain)
    assert_close(matrix, stencil.kernel_matrix(u, domain))
    assert_close(operator.kernel_matrix(u, domain, rows=[3, 1]), matrix[:, :, [3, 1]])
    masses = domain.with_masses(torch.rand(domain.size).double(), normalised=True)
    assert_close(operator(u, masses), stencil(u, masses))
    pairs = domain.replace(pairs=torch.randn(domain.size, domain.size).double())
    assert_close(operator(u, pairs), stencil(u, pairs))


@pytest.mark.parametrize(
    ("domain", "named"),
    [
        (Domain.line(5, causal=True), "both directions"),
        (Domain.points(torch.rand(5, 1)), "regular grid"),
        (Domain.line(5, valid=torch.ones(1, 5, dtype=torch.bool)), "padding is circular"),
    ],
)
def test_unsupported_domains_are_refused(domain, named):
    layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    kernel = PeriodicKernel(layer, 1, 1, axes=1)
    with pytest.raises(DomainError, match=named):
        IntegralOperator(1, kernel=kernel, residual=False, projection=False)(
            torch.zeros(1, 5, 1), domain
        )


# --- the library that has such layers; it computes in single precision ----------------------------


@pytest.fixture
def spectral():
    return pytest.importorskip("neuralop.layers.spectral_convolution").SpectralConv


def test_a_half_precision_layer_accepts_float32_masses():
    layer = nn.Conv1d(2, 2, 3, padding="same", padding_mode="circular")
    kernel = PeriodicKernel(layer, 2, 2, axes=1)
    operator = IntegralOperator(2, kernel=kernel, residual=False, projection=False)
    u = torch.randn(1, 6, 2)
    domain = Domain.grid(6, measure="uniform")
    exact = operator(u, domain)
    found = operator.bfloat16()(u.bfloat16(), domain)
    assert found.dtype == torch.bfloat16
    assert_close(found, exact.bfloat16())


@pytest.mark.parametrize("shape", [(5,), (6,), (4, 5), (6, 4), (4, 2, 3)], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"factorization": "tucker", "implementation": "factorized"}]
)
def test_a_spectral_convolution_equals_its_operator(spectral, shape, options):
    layer = spectral(2, 3, (4,) * len(shape), **options)
    u = torch.randn(2, torch.Size(shape).numel(), 2)
    domain = grid(*shape, dtype=torch.float32)
    assert_same(as_operator(layer), layer, u, domain)


@pytest.mark.parametrize(
    "options",
    [{"complex_data": True}, {"resolution_scaling_factor": 2}, {"fno_block_precision": "mixed"}],
)
def test_unsupported_options_are_named(spectral, options):
    with pytest.raises(ConversionError, match=next(iter(options))):
        as_operator(spectral(2, 2, (4, 4), **options))


def test_an_odd_axis_is_refused_as_the_layer_is_not_a_convolution(spectral):
    layer = spectral(1, 1, (4, 4))
    images = torch.randn(1, 1, 5, 6)
    shifted = layer(images.roll(1, 2)).roll(-1, 2)
    assert (shifted - layer(images)).abs().max() > 1e-2
    with pytest.raises(DomainError, match=r"odd number of points: it moves modes along axes \[0\]"):
        as_operator(layer)(images.flatten(2).mT, grid(5, 6, dtype=torch.float32))
