"""What a fleet asks of a cluster: planned on made-up machines, nothing is started."""

import pytest
from tiny import blueprint

from rayfl.actors.placement import capacity, choose_actors, preflight, requests
from rayfl.errors import UserError
from rayfl.layout import FleetConfig, plan_layout, spread_clients
from rayfl.tree import NUM_BLOCKS, block_of

LAPTOP = [{"CPU": 2.0}]
ONE_GPU = [{"CPU": 16.0, "GPU": 1.0}]
THREE_GPUS = [{"CPU": 16.0, "GPU": 3.0}]


@pytest.mark.parametrize(
    ("share", "machines", "room"),
    [(0.6, ONE_GPU, 1), (0.18, ONE_GPU, 5), (0.33, ONE_GPU, 3), (0.3, ONE_GPU, 3), (0.25, ONE_GPU, 4),
     (0.6, THREE_GPUS, 3), (2, THREE_GPUS, 1), (0.25, LAPTOP, 0)],
)  # fmt: skip
def test_each_share_of_a_gpu_lies_on_one_card(
    share: float, machines: list[dict[str, float]], room: int
) -> None:
    config = FleetConfig(kind="ray", gpus_per_actor=share, cpus_per_actor=1)
    assert capacity(config, machines) == room
    if room:
        assert choose_actors(config, 100, machines).client_actors == room


def plan(config: FleetConfig, machines: list[dict[str, float]], method: str = "splitfed_v1") -> None:
    layout = plan_layout(blueprint(method, (5,) * 8, num_edges=2), config)
    preflight(layout, config, machines)


@pytest.mark.parametrize(
    ("config", "machines", "said"),
    [
        (FleetConfig(client_actors=4, gpus_per_actor=0.6), ONE_GPU, r"room for 1; set fleet.client_actors=1"),
        (FleetConfig(client_actors=1, gpus_per_actor=0.25), LAPTOP, r"there are 2 CPU and 0 GPU.*room for 0"),
        (FleetConfig(client_actors=2, gpus_per_actor=1.5), THREE_GPUS, r"gpus_per_actor=1.5.*use 1 or 2"),
        (FleetConfig(client_actors=1, gpus_per_actor=5.33), THREE_GPUS, r"use 5 or 6"),
        (
            FleetConfig(clients_per_actor=1),
            LAPTOP,
            r"8 client actors.*there are 2 CPU.*fleet.clients_per_actor=4",
        ),
        (
            FleetConfig(client_actors=2, placement="separate", cpus_per_server=1),
            LAPTOP,
            r"asks for 5 CPU in all, there are 2",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_both_numbers(
    config: FleetConfig, machines: list[dict[str, float]], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        plan(config, machines)


def test_servers_take_no_cpu_unless_asked() -> None:
    plan(FleetConfig(client_actors=2, placement="separate"), LAPTOP)
    plan(FleetConfig(client_actors=2, placement="separate"), LAPTOP, method="hsfl")
    layout = plan_layout(
        blueprint("hsfl", (5,) * 8, num_edges=2), FleetConfig(client_actors=2, placement="separate")
    )
    needs = requests(layout, FleetConfig())
    assert [need["num_cpus"] for need in needs] == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("actors", [1, 2, 3, 4, 5, 16, 17, 40])
@pytest.mark.parametrize("num_clients", [1, 3, 16, 20, 100])
def test_clients_are_spread_in_contiguous_whole_blocks(actors: int, num_clients: int) -> None:
    hosts = spread_clients(num_clients, FleetConfig(client_actors=actors))
    assert list(hosts) == sorted(hosts)
    assert set(hosts) == set(range(max(hosts) + 1))
    assert max(hosts) + 1 == min(actors, num_clients)
    if actors <= NUM_BLOCKS:
        for block in range(NUM_BLOCKS):
            assert len({hosts[i] for i in range(num_clients) if block_of(i, num_clients) == block}) <= 1
