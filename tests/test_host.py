"""What a process lends its parties: modules, and ways to run them without training."""

import pytest
import tiny
import torch
from torch import nn

from rayfl.host import Host, evaluating


def test_evaluating() -> None:
    """Neither statistics nor graph within, training mode behind it, also after a failure."""
    part = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
    with evaluating(part):
        assert not part(torch.randn(3, 2)).requires_grad
    assert part.training
    assert part.get_buffer("1.num_batches_tracked").item() == 0
    with pytest.raises(ZeroDivisionError), evaluating(part):
        raise ZeroDivisionError
    assert part.training
    assert part(torch.randn(3, 2)).requires_grad


def test_frozen() -> None:
    """The weights given, as they are; the module goes back to the shelf, also after a failure."""
    host = Host(tiny.blueprint("fedavg", model="batch"))
    weights = {name: value + 1 for name, value in host.initial("client").items()}
    inputs = torch.ones(3, 2, 8, 8, dtype=torch.float64)
    with host.frozen("client", weights) as lent:
        assert not lent.training
        assert not lent(inputs).requires_grad
        assert tiny.identical(dict(lent.state_dict()), weights)
    with pytest.raises(ZeroDivisionError), host.frozen("client", weights):
        raise ZeroDivisionError
    again = host.borrow("client").module
    assert again is lent
    assert again.training
