"""Products of both streams: with weights merged for a CPU they are what the target's with small ones added are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchctl.decoding.accelerated import Adapted, LowRank
from benchctl.decoding.kernels import Linear

INPUTS, OUTPUTS, RANK = 24, 40, 5


def _parts(adapted: int, biased: bool) -> tuple[Tensor, Tensor | None, LowRank]:
    generator = torch.Generator().manual_seed(3)
    trained = LowRank(INPUTS, adapted, RANK, 1.5, torch.device("cpu"), bends=False)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    bias = torch.randn(OUTPUTS, generator=generator) if biased else None
    return torch.randn(OUTPUTS, INPUTS, generator=generator), bias, trained.requires_grad_(False)


def _by_hand(weight: Tensor, bias: Tensor | None, trained: LowRank, x: Tensor, rows: int) -> Tensor:
    """Row by row in float64."""
    found = x.double() @ weight.double().t()
    added = (x[rows:].double() @ trained.down.weight.double().t()) @ trained.up.weight.double().t()
    found[rows:, : added.shape[1]] += trained.scale * added
    return found if bias is None else found + bias.double()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("adapted", [OUTPUTS, OUTPUTS - 16])
@pytest.mark.parametrize(("rows", "companions"), [(1, 1), (0, 1), (0, 2), (2, 1), (3, 3), (1, 4)])
@pytest.mark.parametrize("fast", [True, False])
def test_rows_have_the_targets_weights_and_companions_the_adapters_too(
    rows: int, companions: int, adapted: int, biased: bool, fast: bool
) -> None:
    weight, bias, trained = _parts(adapted, biased)
    product = Adapted(Linear(weight, bias, fast), trained)
    x = torch.randn(rows + companions, INPUTS, generator=torch.Generator().manual_seed(rows))
    expected = _by_hand(weight, bias, trained, x, rows)
    torch.testing.assert_close(product(x, rows).double(), expected, rtol=1e-5, atol=1e-5)
    if adapted == OUTPUTS:
        states = torch.randn(rows + companions, OUTPUTS)
        before = states.clone()
        torch.testing.assert_close(
            product.add_to(states, x, rows).double(), before.double() + expected, rtol=1e-5, atol=1e-5
        )
        assert torch.equal(states, before)


def test_one_row_and_its_companion_take_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the small products a drafted token took a third longer on a CPU."""
    weight, _, trained = _parts(OUTPUTS, biased=False)
    product = Adapted(Linear(weight), trained)
    called: list[str] = []
    for name in ("mm", "addmm", "bmm"):
        monkeypatch.setattr(torch, name, _noting(called, name, getattr(torch, name)))
    product(torch.ones(2, INPUTS), 1)
    assert called == ["bmm"]


def _noting(called: list[str], name: str, usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def noted(*tensors: Tensor) -> Tensor:
        called.append(name)
        return usual(*tensors)

    return noted
