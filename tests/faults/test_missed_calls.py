"""A call that never comes, because it waited for something lost, is noticed by the actor that misses it."""

import pickle
import sys

import pytest
import tiny

from rayfl.actors.shell import Poison, ShellActor
from rayfl.errors import PartyLost
from rayfl.fleet_config import FleetConfig
from rayfl.layout import local_layout
from rayfl.shell import Request


@pytest.fixture
def actor() -> ShellActor:
    """An actor's inside, with all parties of a tiny federation."""
    plan = tiny.blueprint("fedavg")
    layout = local_layout(plan)
    started = ShellActor()
    started.host(pickle.dumps(plan), sys.path, layout.members(0), layout.topology, FleetConfig())
    return started


def weights(ticket: int) -> Request:
    return Request(ticket, "fed", (0,), "weights", (), 1, "train")


def test_all_came(actor: ShellActor) -> None:
    actor.call([weights(0), weights(1)])
    actor.call([weights(2)])
    assert actor.settle((), 2).failure is None
    assert 0 in actor.export(2, None)  # type: ignore[operator]


def test_one_did_not(actor: ShellActor) -> None:
    actor.call([weights(0)])
    assert isinstance(actor.settle((), 2).failure, PartyLost)


def test_what_it_would_have_made_is_not_there(actor: ShellActor) -> None:
    """Whoever asks for it learns why, and so do those who asked for theirs."""
    found = actor.export(7, None)
    assert isinstance(found, Poison)
    assert isinstance(pickle.loads(pickle.dumps(found)).cause, PartyLost)
    actor.call([weights(8)], found)
    assert isinstance(actor.settle((), 1).failure, PartyLost)
