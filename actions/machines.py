"""Which machines a run asks for first, and who rents them: the one place that knows every cloud."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from actions.domain import HERE, first_weights
from actions.planning import Question
from actions.traces import trace_of, zones_of
from provision.catalog import LOCAL_MACHINE, LOCAL_ZONES
from provision.clusters import ClusterProvisioner, end_leftovers
from provision.faults import Machines
from provision.hosts import LOCAL_HOST, Host
from provision.local import LocalProvisioner
from provision.local import end_leftovers as end_local_leftovers
from provision.namespaces import Namespaces, NoNamespaces
from provision.outlook import Place
from provision.payload import make_payload
from provision.placement import INFRAS, Placement, host_placement, placement
from provision.replay import TraceProvisioner
from provision.sky_launcher import AgentOrder, SkyLauncher, SkyProcess
from provision.trace import Trace
from sailor.cluster.pool import Offer
from sailor.cluster.provisioner import NodeRequest, Provisioner, Released
from sailor.config import Config
from sailor.errors import CloudError
from sailor.planner.question import Candidate
from sailor.units import parse_seconds

# A cloud takes about a minute to say that it has nothing; played faster, a trace says it sooner.
_ANSWER_S = 60.0
MOST_PLACES = 24


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """Who rents, and what goes with it.

    ``leftovers`` ends what an earlier start of the run left behind, besides the nodes (on a cloud,
    clusters) named, which were taken over. ``breakable`` takes faults,
    where machines are ours to break. ``play`` must run beside the job, ``close`` be called at the
    end, where there is such a thing.
    """

    provisioner: Provisioner
    leftovers: Callable[[Collection[str]], Awaitable[tuple[Released, ...]]]
    breakable: Machines | None = None
    play: Callable[[], Coroutine[Any, Any, None]] | None = None
    close: Callable[[], Awaitable[None]] | None = None


def first_requests(config: Config, chosen: Candidate) -> tuple[NodeRequest, ...]:
    """The machines a run starts with: those of its plan, or this computer's, spread over zones;
    and those that stand by, which are like the plan's most common ones."""
    standbys = config.cloud.standbys or 0
    number = config.cloud.nodes + standbys
    if config.cloud.name == "trace":
        return _spread(number, _trace_zones(trace_of(config), nodes=number))
    if config.cloud.name in HERE:
        return _spread(number, cycle(LOCAL_ZONES))
    offers = [
        rental.offer for rental in chosen.rentals for _ in range(rental.num_machines)
    ]  # fmt: skip
    # Those that can stand in for most of the others.
    most = sorted(chosen.rentals, key=lambda rental: -rental.num_machines)
    offers += [rental.offer for rental, _ in zip(cycle(most), range(standbys), strict=False)]
    return tuple(
        NodeRequest(
            node=f"node-{number}",
            zone=offer.zone.name,
            machine_type=offer.machine_type.name,
            spot=offer.spot,
            price_per_hour=offer.price_per_hour,
        )
        for number, offer in enumerate(offers, start=1)
    )


def offers_by_place(config: Config, asked: Question, chosen: Candidate) -> dict[Place, Offer]:
    """What a run may ask for later; of a place offered twice, the cheaper offer.

    On a cloud with hundreds of places, those of the machine types that the plan is made of, and of
    the rest the few with most computing for a dollar: each may have to be planned with while a
    machine is missing.
    """
    offers: dict[Place, Offer] = {}
    for offer in sorted(asked.catalogue.pool.offers, key=lambda o: -o.price_per_hour):
        offers[offer.zone.name, offer.machine_type.name, offer.spot] = offer
    if config.cloud.name in HERE:
        # Whoever is lost in one zone may be replaced in another: no zone has a number of its own.
        most = config.cloud.trace.most if config.cloud.name == "trace" else config.cloud.max_nodes
        return {place: replace(offer, count=most) for place, offer in offers.items()}
    wanted = {machine_type for _, machine_type in chosen.plan.gpus_by_pool()}
    ranked = sorted(
        offers, key=lambda place: (place[1] not in wanted, -_flops_per_dollar(offers[place]))
    )
    return {place: offers[place] for place in ranked[:MOST_PLACES]}


def _flops_per_dollar(offer: Offer) -> float:
    gpu = offer.machine_type.gpu
    flops = (gpu.matmul_flops or gpu.peak_flops) * offer.machine_type.num_gpus
    return flops / max(offer.price_per_hour, 1e-9)


def machinery(
    config: Config,
    asked: Question,
    *,
    run: str,
    folder: Path,
    controller: tuple[str, int],
    identity: Path,
    tokens: Path,
    tell_capacity: Callable[[Place], None],
    network: Namespaces | None = None,
    host: Host | None = None,
) -> Machinery:
    """Whoever rents machines for a run, ready to be asked. Needs a running event loop.

    ``host`` is the machine without GPUs that is asked for as an anchor, if one is.
    """
    if config.cloud.name not in HERE:
        return _clusters(
            config, asked, run=run, folder=folder, controller=controller, identity=identity,
            tokens=tokens, host=host,
        )  # fmt: skip
    trace = trace_of(config) if config.cloud.name == "trace" else None
    local = LocalProvisioner(
        run=run,
        folder=folder,
        controller=controller,
        identity=identity,
        slots={LOCAL_MACHINE: config.cloud.gpus_per_node, LOCAL_HOST: 0},
        zones=LOCAL_ZONES if trace is None else zones_of(trace),
        network=network,
    )

    async def leftovers(taken: Collection[str]) -> tuple[Released, ...]:
        ended = await end_local_leftovers(folder, run=run, besides=taken)
        if network is not None:
            network.sweep(besides=taken)
        return ended

    if trace is None:
        return Machinery(provisioner=local, leftovers=leftovers, breakable=local)
    spot = TraceProvisioner(
        local,
        trace,
        seed=config.seed,
        answer_s=_ANSWER_S / config.cloud.trace.faster,
        on_capacity=lambda zone, machine_type, free: tell_capacity((zone, machine_type, True)),
    )
    return Machinery(provisioner=spot, leftovers=leftovers, breakable=spot, play=spot.play)


@contextmanager
def own_network(config: Config, *, run: str) -> Iterator[Namespaces | None]:
    """The network of a run whose machines have one of their own, until the end of the block; else
    None. Raises CloudError E409."""
    if shares_network(config) or config.cloud.name not in HERE:
        yield None
        return
    network = Namespaces(run)
    try:
        network.open()
    except NoNamespaces as error:
        raise no_networks(str(error)) from error
    try:
        yield network
    finally:
        network.close()


def shares_network(config: Config) -> bool:
    """Whether machines are processes of this computer that have no network of their own."""
    return config.cloud.name in HERE and not config.cloud.isolated


def no_networks(why: str) -> CloudError:
    """E409: this computer cannot give machines networks of their own."""
    return CloudError(
        "machines cannot have networks of their own on this computer",
        code="E409",
        why=why,
        where="cloud.isolated=true",
        fix="cloud.isolated=false   lets them share this computer's",
    )


def placements(
    config: Config,
    asked: Question,
    *,
    zone_names: Mapping[str, str] | None = None,
    host: Host | None = None,
) -> Callable[[NodeRequest], Placement]:
    """How each machine on offer is asked for. The function raises CloudError E404."""
    offers = {
        (offer.zone.name, offer.machine_type.name): offer for offer in asked.catalogue.pool.offers
    }

    zones = {offer.zone.name: offer.zone for offer in asked.catalogue.pool.offers}

    def place(request: NodeRequest) -> Placement:
        if host is not None and request.machine_type == host.name and request.zone in zones:
            return host_placement(host, zone=zones[request.zone], zone_names=zone_names)
        offer = offers.get((request.zone, request.machine_type))
        if offer is None:
            raise CloudError(
                f"{config.cloud.name} has no {request.machine_type} in {request.zone}",
                code="E404",
                fix="cloud.zones=[]",
            )
        return placement(
            offer.machine_type, zone=offer.zone, spot=request.spot, zone_names=zone_names
        )

    return place


def _clusters(
    config: Config, asked: Question, *, run: str, folder: Path, controller: tuple[str, int],
    identity: Path, tokens: Path, host: Host | None,
) -> Machinery:  # fmt: skip
    cloud = config.cloud
    mounts = {} if cloud.shared_files else {remote_tokens(tokens): tokens}
    model = first_weights(config)
    if model and not cloud.shared_files:
        mounts[remote_model(Path(model))] = Path(model)
    sky = SkyProcess(log_path=folder / "logs" / "skypilot.log")
    launcher = SkyLauncher(
        cloud=cloud.name,
        run=run,
        sky=sky,
        place=placements(config, asked, zone_names=asked.catalogue.zone_names or None, host=host),
        agent=AgentOrder(
            controller=(config.runtime.address or controller[0], controller[1]),
            identity=identity,
            slots={
                name: machine.num_gpus
                for name, machine in asked.catalogue.pool.machine_types.items()
            }
            | ({} if host is None else {host.name: 0}),
            python=cloud.python or "",
            mounts=mounts,
        ),
        payload=make_payload(folder / ".payload"),
        idle_minutes=max(1, round(parse_seconds(cloud.idle) / 60)),
    )
    provisioner = ClusterProvisioner(
        folder=folder,
        launcher=launcher,
        nodes_per_cluster=min(cloud.nodes_per_cluster, INFRAS[cloud.name].most_nodes),
        launches_in_flight=cloud.launches,
        launch_s=parse_seconds(cloud.join),
    )

    async def leftovers(taken: Collection[str]) -> tuple[Released, ...]:
        return await end_leftovers(
            folder, launcher=launcher, besides=provisioner.clusters_of(taken)
        )

    return Machinery(provisioner=provisioner, leftovers=leftovers, close=sky.close)


def remote_tokens(tokens: Path) -> str:
    """Where text made into tokens lies on a machine that does not share our files."""
    return f"/tmp/sailor-tokens/{tokens.name}"


def remote_model(folder: Path) -> str:
    """Where the model a run starts from lies on a machine that does not share our files."""
    return f"/tmp/sailor-model/{folder.name}"


def _spread(nodes: int, zones: Iterable[str]) -> tuple[NodeRequest, ...]:
    return tuple(
        NodeRequest(node=f"node-{number}", zone=zone, machine_type=LOCAL_MACHINE, spot=True)
        for number, zone in zip(range(1, nodes + 1), zones, strict=False)
    )


def _trace_zones(trace: Trace, *, nodes: int) -> Sequence[str]:
    """A zone for each machine: in turn, as far as each has some to give at the beginning."""
    left = {zone: count for (zone, _), count in trace.capacity_at(0.0).items()}
    zones: list[str] = []
    for zone in cycle(list(left)):
        if len(zones) == nodes:
            break
        if left[zone] > 0 or max(left.values()) <= 0:
            left[zone] -= 1
            zones.append(zone)
    return zones
