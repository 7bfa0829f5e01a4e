"""What a fleet asks of a cluster, and which machine each actor gets: planned on made-up machines, nothing is
started."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tiny import blueprint

from rayfl.actors import waiting
from rayfl.actors.assign import NoRoom, assign
from rayfl.actors.placement import at_once, bundles, check_fits, choose_actors, reservation
from rayfl.actors.plan import plan_fleet, requests, whereabouts
from rayfl.errors import RunFailed, UserError
from rayfl.fleet_config import FleetConfig
from rayfl.layout import plan_layout, spread_clients
from rayfl.loading.experiments import dump, load_experiment
from rayfl.machines import Machine, Need, Room, capacity
from rayfl.room import at_most_here, client_need
from rayfl.tree import NUM_BLOCKS, block_of


def node(name: str, cpus: float, gpus: float = 0.0, labels: str = "", **custom: float) -> Machine:
    """A node; labels as ``zone=a disk=ssd``."""
    pairs = dict(text.split("=") for text in labels.split())
    return Machine({"CPU": cpus, "GPU": gpus, **custom}, pairs, name)


LAPTOP = [node("laptop", 2)]
ONE_GPU = [node("one", 16, 1)]
THREE_GPUS = [node("three", 16, 3)]
TWO = [node("a", 4), node("b", 4)]
GPU_BESIDE = [node("a", 4), node("b", 4, 1)]
LABELS = ["zone=a", "ray.io/disk.kind=ssd"]
ZONES = [node("a", 2, labels="zone=a"), node("b", 2, labels="zone=b"), node("c", 2, labels="zone=b")]


@pytest.mark.parametrize(
    ("share", "machines", "room"),
    [(0.6, ONE_GPU, 1), (0.18, ONE_GPU, 5), (0.33, ONE_GPU, 3), (0.3, ONE_GPU, 3), (0.25, ONE_GPU, 4),
     (0.1, ONE_GPU, 10), (1, THREE_GPUS, 3), (0.6, THREE_GPUS, 3), (2, THREE_GPUS, 1), (4, THREE_GPUS, 0),
     (0.5, [*ONE_GPU, *THREE_GPUS], 8), (2, [*ONE_GPU, *ONE_GPU], 0), (0.25, LAPTOP, 0)],
)  # fmt: skip
def test_each_share_of_a_gpu_lies_on_one_card(share: float, machines: list[Machine], room: int) -> None:
    config = FleetConfig(kind="ray", gpus_per_actor=share, cpus_per_actor=1)
    assert capacity(client_need(config), machines) == room
    if room:
        assert choose_actors(config, 100, machines).client_actors == room


def test_different_shares_share_cards_as_ray_lets_them() -> None:
    """0.5 + 0.5 fill one card, then 0.6 takes the other, where 0.4 and no 0.5 fit beside it."""
    room = Room(node("n", 9, 2))
    for share in (0.5, 0.5, 0.6):
        room.take(Need({"GPU": share}))
    assert [room.times(Need({"GPU": share})) for share in (1.0, 0.5, 0.4, 0.2)] == [0, 0, 1, 2]


def test_a_trials_own_part_of_a_card_is_room_for_its_actor() -> None:
    part = Machine({"CPU": 1.0, "GPU": 0.25}, node="n", bundle=0)
    assert capacity(Need({"CPU": 1.0, "GPU": 0.25}), [part]) == 1


def plan(config: FleetConfig, machines: list[Machine], method: str = "splitfed_v1") -> list[str]:
    """The node of each host."""
    made = plan_fleet(blueprint(method, (5,) * 8, num_edges=2), config, machines)
    return [machine.node for machine in made.machines]


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
        (FleetConfig(client_actors=3, cpus_per_actor=3), TWO, r"are 8 CPU and 0 GPU on 2 nodes.*room for 2"),
        (FleetConfig(client_actors=1, cpus_per_actor=5), TWO, r"8 CPU and 0 GPU on 2 nodes.*room for 0"),
        (FleetConfig(client_actors=5, labels=("zone=b",)), ZONES, r"label zone=b each.*room for 4"),
        (FleetConfig(labels=("zone=d",)), ZONES, r"no node has zone=d.*fleet.labels.*zone=a, zone=b$"),
        (FleetConfig(labels=("disk=ssd", "zone=a")), ZONES, r"no node has disk=ssd, zone=a"),
        (FleetConfig(labels=("zone=d",)), LAPTOP, r"fleet.labels asks for: there are none at all"),
        (FleetConfig(resources={"big": 1}), LAPTOP, r"no node has 1 big.*the most is 0: there are none"),
        (
            FleetConfig(resources={"big": 2}, client_actors=1),
            [node("a", 4, big=1, small=3), node("b", 4, big=1)],
            r"no node has 2 big, which fleet.resources asks for, the most is 1: there are big, small",
        ),
        (
            FleetConfig(resources={"big": 1}, client_actors=3),
            [node("a", 4, big=1), node("b", 4, big=1)],
            r"3 client actors with 1 CPU, 0 GPU and 1 big each don't fit.*room for 2",
        ),
        (
            FleetConfig(resources={"big": 1}, labels=("zone=b",), client_actors=1),
            [node("a", 4, big=1), node("b", 4, labels="zone=b")],
            r"no node has 1 big",
        ),
        (
            FleetConfig(client_actors=1, placement="separate", server_labels=("zone=c",)),
            ZONES,
            r"no node has zone=c, which fleet.server_labels asks for",
        ),
        (
            FleetConfig(client_actors=1, placement="separate", server_resources={"big": 1}),
            TWO,
            r"no node has 1 big, which fleet.server_resources asks for",
        ),
        (
            FleetConfig(client_actors=1, placement="separate", gpus_per_server=0.5),
            TWO,
            r"asks for 0.5 GPU in all, there are 0",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_both_numbers(
    config: FleetConfig, machines: list[Machine], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        plan(config, machines)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "machines", "said"),
    [
        # 2 + 3 x 2 CPUs of 8: three servers of 2 find no place beside a client on either node.
        (
            FleetConfig(client_actors=2, cpus_per_actor=1.5, placement="separate", cpus_per_server=1.6),
            TWO,
            r"beside 2 client actors with 1.5 CPU and 0 GPU no node has room for the .* server with 1.6 CPU "
            r"and 0 GPU: there are 2 nodes with 4 CPU and 0 GPU; lower fleet.client_actors=2",
        ),
        # 0.6 + 0.6 of two halves.
        (
            FleetConfig(client_actors=1, gpus_per_actor=0.6, placement="separate", gpus_per_server=0.6),
            [node("a", 9, 1), node("b", 0, 0.4)],
            r"no node has room for the main server with 0 CPU and 0.6 GPU",
        ),
        (
            FleetConfig(client_actors=2, placement="separate", cpus_per_server=3, labels=("zone=b",)),
            [node("a", 12), node("b", 2, labels="zone=b"), node("c", 2.5)],
            None,
        ),
        (
            FleetConfig(client_actors=2, placement="separate", cpus_per_server=3),
            [node("a", 3), node("b", 3), node("c", 2), node("d", 2), node("e", 1)],
            r"room for the .* server",
        ),
    ],
)
def test_the_sum_may_fit_where_no_single_node_has_room(
    config: FleetConfig, machines: list[Machine], said: str | None
) -> None:
    """Each time there is enough in all of the cluster."""
    if said is None:
        assert len(plan(config, machines)) == 5
        return
    with pytest.raises(UserError, match=said):
        plan(config, machines)


@pytest.mark.parametrize(
    ("actors", "machines", "nodes"),
    [
        (2, TWO, "ab"),
        (3, TWO, "aab"),
        (8, TWO, "aaaabbbb"),
        (2, LAPTOP, ["laptop"] * 2),
        (3, [node("a", 2), node("b", 4)], "abb"),
        (6, [node("a", 2), node("b", 4)], "aabbbb"),
        (4, [node("a", 0), node("b", 4), node("c", 4)], "bbcc"),
        (4, ZONES, "aabc"),
    ],
)
def test_client_actors_are_spread_by_capacity_neighbours_together(
    actors: int, machines: list[Machine], nodes: str | list[str]
) -> None:
    assert plan(FleetConfig(client_actors=actors), machines) == list(nodes)


def test_labels_and_resources_choose_the_nodes() -> None:
    assert plan(FleetConfig(client_actors=4, labels=("zone=b",)), ZONES) == list("bbcc")
    some = [node("a", 4), node("b", 4, big=2), node("c", 4, big=1)]
    assert plan(FleetConfig(client_actors=3, resources={"big": 1}), some) == list("bbc")
    assert plan(FleetConfig(client_actors=4, resources={"big": 0.5}), some) == list("bbbc")
    servers = FleetConfig(
        client_actors=2, placement="separate", labels=("zone=b",), server_labels=("zone=a",)
    )
    assert plan(servers, ZONES) == list("bcaaa")


def test_servers_sit_near_the_clients_they_serve() -> None:
    """SplitFed v1: a shard of the main server per client actor. HSFL: edges 0 and 1 with four clients each,
    then the main and the fed server, who serve all and are with most of them or else on the first node."""
    separate = {"placement": "separate", "client_actors": 4}
    assert plan(FleetConfig(**separate), TWO) == list("aabbaabba")
    assert plan(FleetConfig(**separate, main_shards=2), TWO) == list("aabbaba")
    assert plan(FleetConfig(**separate), TWO, "hsfl") == list("aabbaaba")
    more_on_b = [node("a", 1), node("b", 3)]
    assert plan(FleetConfig(**separate), more_on_b, "hsfl") == list("abbbbabb")
    assert plan(FleetConfig(**separate), more_on_b, "fedavg") == list("abbbb")


def test_a_server_goes_to_its_gpu_even_if_clients_must_make_room() -> None:
    gpu = FleetConfig(placement="separate", client_actors=2, gpus_per_server=1)
    assert plan(gpu, GPU_BESIDE, "mergesfl") == list("abba")
    # The servers take 4 CPUs of b: clients, spread first, would leave them 3.
    large = FleetConfig(placement="separate", client_actors=4, gpus_per_server=1, cpus_per_server=4)
    assert plan(large, [node("a", 8), node("b", 4, 1)], "mergesfl") == list("aaaaba")


def test_no_room_names_the_first_server_that_finds_none() -> None:
    layout = plan_layout(
        blueprint("hsfl", (5,) * 8, num_edges=2), FleetConfig(client_actors=2, placement="separate")
    )
    needs = requests(layout, FleetConfig(cpus_per_server=2))
    with pytest.raises(NoRoom) as caught:
        assign(layout, needs, [node("a", 3), node("b", 4)])
    assert layout.hosts[caught.value.host].kind == "edge"


def test_a_trials_bundles_are_kept_for_whom_they_are() -> None:
    """Clients leave the larger pieces, which they would fit into, to the shards of their nodes."""
    config = FleetConfig(client_actors=2, placement="separate", cpus_per_server=2)
    pieces = ("a", 1.0), ("b", 2.0), ("a", 2.0), ("b", 1.0), ("a", 2.0)
    parts = [Machine({"CPU": cpus}, node=name, bundle=i) for i, (name, cpus) in enumerate(pieces)]
    made = plan_fleet(blueprint("splitfed_v1", (5,) * 8), config, parts)
    assert [machine.bundle for machine in made.machines] == [0, 3, 2, 1, 4]


def test_servers_take_no_cpu_unless_asked() -> None:
    separate = FleetConfig(client_actors=2, placement="separate")
    plan(separate, LAPTOP)
    plan(separate, LAPTOP, method="hsfl")
    layout = plan_layout(blueprint("hsfl", (5,) * 8, num_edges=2), separate)
    needs = requests(layout, FleetConfig(gpus_per_server=0.5))
    assert [need.amounts for need in needs] == [{"CPU": 1}, {"CPU": 1}, {"GPU": 0.5}, {}, {}, {}]


def test_the_line_on_several_nodes() -> None:
    config = FleetConfig(client_actors=3, placement="separate")
    federation = blueprint("splitfed_v1", (5,) * 8)
    assert whereabouts(plan_fleet(federation, config, LAPTOP * 2)) == ""
    line = whereabouts(plan_fleet(federation, config, [node("a", 2), node("b", 1)]))
    assert line == "3 client actors on 2 nodes (2 + 1), 4 server actors on 2"


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


def test_what_is_known_before_ray_starts_is_an_upper_bound() -> None:
    """Labels and custom resources are not known then, and refuse nothing."""
    here = at_most_here()
    assert here is not None
    assert here.amounts["CPU"] >= 1
    need = Need({"CPU": 1.0, "big": 7.0}, {"zone": "a"})
    assert capacity(need, [Machine({"CPU": 2.0}, labels=None)]) == 2


def reserved(method: str = "fedavg", device: str = "cpu", **fleet: Any) -> list[Need]:
    """What a trial with eight clients asks of four CPUs and two GPUs."""
    config = load_experiment(
        "fedavg.digits",
        {"algorithm.name": method, "train.device": device, "data.num_clients": 8, "train.threads": 2},
    )
    return bundles(dataclasses.replace(config, fleet=FleetConfig(**fleet)), [node("a", 4, 2)])


def test_a_trial_reserves_what_its_actors_do() -> None:
    nothing, cpu = Need(), Need({"CPU": 1.0})
    assert reserved() == [Need({"CPU": 2.0})]
    assert reserved(labels=("zone=a",), resources={"big": 1}) == [Need({"CPU": 2.0, "big": 1}, {"zone": "a"})]
    assert reserved(device="cuda") == [Need({"CPU": 2.0, "GPU": 1.0})]
    assert reserved(device="cuda", gpus_per_actor=0.5) == [Need({"CPU": 2.0, "GPU": 0.5})]
    assert reserved(kind="ray", client_actors=2) == [nothing, cpu, cpu]
    assert reserved(kind="ray") == [nothing, *[cpu] * 4]
    shares = {"clients_per_actor": 1, "cpus_per_actor": 0.5, "gpus_per_actor": 0.25}
    assert reserved(kind="ray", **shares) == [nothing, *[Need({"CPU": 0.5, "GPU": 0.25})] * 8]
    split = {"kind": "ray", "client_actors": 2, "placement": "separate", "cpus_per_server": 1.0}
    # A shard of the main server per client actor, and the fed server; joint servers are one.
    assert reserved("splitfed_v1", **split) == [nothing, *[cpu] * 5]
    assert reserved("mergesfl", **split) == [nothing, *[cpu] * 4]
    gpu = Need({"CPU": 1.0, "GPU": 1.0})
    assert reserved("mergesfl", **split, gpus_per_server=1) == [nothing, cpu, cpu, gpu, cpu]
    assert reserved(kind="ray", cpus_per_actor=0) == [Need({"CPU": 0.001})]


def test_a_trials_reservation_carries_resources_and_labels() -> None:
    needs = reserved(kind="ray", client_actors=2, resources={"big": 1}, labels=("zone=a",), cpus_per_actor=0)
    assert reservation(needs) == {
        "bundles": [{}, {"big": 1}, {"big": 1}],
        "strategy": "SPREAD",
        "bundle_label_selector": [{"zone": "a"}] * 2,
    }
    needs = reserved(kind="ray", client_actors=1, labels=("zone=a",), cpus_per_actor=0)
    assert reservation(needs)["bundles"] == [{}, {"CPU": 0.001}]


def test_how_many_trials_fit_at_once() -> None:
    one = [Need({"CPU": 1.0})]
    assert at_once([one] * 8, [node("a", 4)]) == 4
    assert at_once([one] * 3, [node("a", 4)]) == 3
    assert at_once([[Need(), *one, *one]] * 8, [node("a", 4)]) == 2
    # Three CPUs at a time: 4 + 4 are room for two trials, not for the 8 // 3 of their sum, nor for one more.
    assert at_once([[Need({"CPU": 3.0})]] * 8, TWO) == 2
    assert at_once([[Need({"GPU": 0.6})]] * 8, THREE_GPUS) == 3
    assert at_once([[Need({"CPU": 1.0}, {"zone": "b"})]] * 8, ZONES) == 4


@pytest.mark.parametrize(
    ("needs", "machines", "said"),
    [
        ([Need({"CPU": 1.0})] * 5, [node("a", 4)], "'cell' asks for 5 CPU, the cluster has 4 "),
        ([Need({"CPU": 3.0})], [node("a", 2), node("b", 2)], "at most 2 on one machine"),
        ([Need({"GPU": 0.6})] * 2, ONE_GPU, "asks for 1.2 GPU, the cluster has 1"),
        (
            [Need({"CPU": 3.0})] * 2 + [Need({"CPU": 2.0})],
            TWO,
            "'cell' does not fit: .* one with 2 CPU and 0 GPU: there are 2 nodes with 4 CPU and 0 GPU",
        ),
        ([Need({"CPU": 1.0}, {"zone": "c"})], ZONES, "no node has zone=c"),
        ([Need({"CPU": 1.0, "big": 1})], ZONES, "no node has 1 big"),
        ([Need({"CPU": 1.0}, {"zone": "a"})] * 3, ZONES, "one with 1 CPU, 0 GPU and the label zone=a"),
    ],
)
def test_a_trial_that_could_never_start_is_refused(
    needs: list[Need], machines: list[Machine], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        check_fits("cell", needs, machines)
    assert "\n" not in str(caught.value)


def test_trials_that_fit_are_let_through() -> None:
    check_fits("cell", [Need(), *[Need({"CPU": 2.0})] * 4], TWO)
    check_fits("cell", [Need({"CPU": 1.0}, {"zone": "b"})] * 4, ZONES)


@pytest.mark.parametrize(
    "settings",
    [
        [
            "fleet.resources={big: 1, accelerator_type:A100: 0.1}",
            "fleet.labels=[zone=a, ray.io/disk.kind=ssd]",
        ],
        {"fleet": {"resources": {"big": 1, "accelerator_type:A100": 0.1}}, "fleet.labels": LABELS},
        {"fleet.resources.big": 1, "fleet.resources": {"accelerator_type:A100": 0.1}, "fleet.labels": LABELS},
    ],
)
def test_resources_and_labels_come_through_files_and_settings(settings: Any) -> None:
    config = load_experiment("fedavg.digits", settings)
    assert config.fleet.resources == {"big": 1, "accelerator_type:A100": 0.1}
    assert config.fleet.labels == tuple(LABELS)
    assert client_need(config.fleet).labels == {"zone": "a", "ray.io/disk.kind": "ssd"}
    path_free: Mapping[str, Any] = json.loads(json.dumps(config.to_dict()))
    assert load_experiment(path_free) == config
    assert dump(config).count("ray.io/disk.kind=ssd") == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("fleet.labels=[zone]", r"fleet.labels must be a list of key=value, got 'zone'"),
        ("fleet.server_labels=[=a]", r"fleet.server_labels must be a list of key=value"),
        ("fleet.labels={zone: a}", r"fleet.labels must be a list with each entry text"),
        ("fleet.resources={CPU: 2}", r"custom resources, got CPU: set fleet.cpus_per_actor"),
        ("fleet.server_resources={GPU: 2}", r"fleet.server_resources.*got GPU: set fleet.gpus_per_actor or"),
        ("fleet.resources={memory: 2}", r"got memory: give nodes"),
        ("fleet.resources={big: 0}", r"fleet.resources must be names, each with a number above 0"),
        ("fleet.resources={big: lots}", r"fleet.resources must be names, each with a number above 0"),
        ("fleet.resources=big", r"fleet.resources must be names, each with a number"),
    ],
)
def test_resources_and_labels_that_mean_nothing_are_refused(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load_experiment("fedavg.digits", [setting])
    assert "\n" not in str(caught.value)


def test_where_a_fleet_lies_is_part_of_no_result() -> None:
    """The same federation, whatever the needs: who holds what is hashed without them."""
    plain = plan_layout(blueprint("hsfl", (5,) * 8, num_edges=2), FleetConfig(client_actors=2))
    marked = FleetConfig(client_actors=2, labels=("zone=a",), resources={"big": 1.0})
    assert plan_layout(blueprint("hsfl", (5,) * 8, num_edges=2), marked) == plain


def test_a_lost_node_is_waited_for_only_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four client actors on what a second look finds: two nodes after one look at one node."""
    found = [TWO[:1], TWO]
    monkeypatch.setattr(waiting, "nodes", lambda: found.pop(0))
    monkeypatch.setattr(waiting, "_EVERY_S", 0.0)
    config, federation = FleetConfig(client_actors=4, cpus_per_actor=2), blueprint("fedavg", (5,) * 8)
    made = waiting.wait_for_room(federation, config, wait_s=60.0)
    assert [machine.node for machine in made.machines] == list("aabb")
    found[:] = [TWO[:1], TWO]
    with pytest.raises(UserError, match=r"4 client actors with 2 CPU .* room for 2"):
        waiting.wait_for_room(federation, config, wait_s=0.0)
    monkeypatch.setattr(waiting, "nodes", lambda: TWO[:1])
    with pytest.raises(RunFailed, match=r"no node came back within 0.01 s .* bring the node back and use"):
        waiting.wait_for_room(federation, config, wait_s=0.01)


def test_a_plan_stands_as_long_as_its_nodes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan_fleet(blueprint("fedavg", (5,) * 8), FleetConfig(client_actors=2), TWO)
    monkeypatch.setattr(waiting, "nodes", lambda: [*TWO, *LAPTOP])
    assert waiting.still_there(made)
    monkeypatch.setattr(waiting, "nodes", lambda: TWO[1:])
    assert not waiting.still_there(made)
