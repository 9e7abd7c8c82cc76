"""Kinds of simulated fleets, by name. Measures nothing by itself; see fleet_truth.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.fleets.faults import (
    SLOW_US,
    beside_pauses,
    checkpoints,
    culprit_lost,
    drifting_host,
    evaluations,
    every_second_step,
    host_in_bursts,
    hosts_in_turn,
    in_bursts,
    in_part_of_the_steps,
    local_steps,
    lost_records,
    own_records_lost,
    pair,
    part_of_a_host,
    ranks_in_turn,
    ranks_lost,
    replaced,
    restarted,
    slow_hosts,
    slow_ranks,
    slow_switch,
    stopped_once,
)
from benchmarks.fleets.fleet import STEP_US, PlantedFleet
from benchmarks.fleets.noise import SCATTER, Rng, collections, healthy, heavy_tails, pauses_of_any

Kind = Callable[[Rng], PlantedFleet]
"""Function from a random generator, which determines the noise and the ranks at fault, to a fleet."""

HEALTHY: Final[dict[str, Kind]] = {
    **{
        f"healthy, noise {percent} %, {ranks} ranks": partial(healthy, ranks=ranks, scatter=percent / 100)
        for percent in (1, 3, 5, 20, 60)
        for ranks in (2, 4, 8, 64, 256)
        if ranks >= 8 or percent in (3, 20)
    },
    "healthy, heavy tails, 8 ranks": partial(heavy_tails, ranks=8),
    "healthy, heavy tails, 64 ranks": partial(heavy_tails, ranks=64),
    "healthy, any rank pauses in 8 % of the steps, 8 ranks": partial(pauses_of_any, ranks=8, share=0.08),
    "healthy, any rank pauses in 8 % of the steps, 64 ranks": partial(pauses_of_any, ranks=64, share=0.08),
    "healthy, noise of 20 steps, 8 ranks": partial(healthy, ranks=8, lasts=20),
    "healthy, noise of 20 steps, 64 ranks": partial(healthy, ranks=64, lasts=20),
    "healthy, noise 5 % of hosts, 64 ranks": partial(healthy, ranks=64, scatter=0.05, of_hosts=True),
    "healthy, noise 20 % of hosts and 20 steps, 64 ranks": partial(healthy, ranks=64, scatter=0.2, lasts=20, of_hosts=True),
    "healthy, 1024 ranks": partial(healthy, ranks=1024, steps=200),
    "healthy, noise 20 % of 20 steps, 8 ranks": partial(healthy, ranks=8, scatter=0.2, lasts=20),
    "healthy, noise 20 % of 20 steps, 64 ranks": partial(healthy, ranks=64, scatter=0.2, lasts=20),
    **{
        f"healthy, 35 steps{condition}, {ranks} ranks": partial(fleet, ranks=ranks, steps=35)
        for condition, fleet in (
            ("", healthy),
            (", noise 20 %", partial(healthy, scatter=0.2)),
            (", heavy tails", heavy_tails),
            (", any rank pauses in 8 % of the steps", partial(pauses_of_any, share=0.08)),
        )
        for ranks in (8, 64)
    },
    "no rank more than others pauses in half of the steps, 64 ranks": partial(
        pauses_of_any, ranks=64, share=0.5, shortest_us=55_000.0, longest_us=65_000.0
    ),
    "garbage collections in turn, 2 ranks": partial(collections, ranks=2),
    "garbage collections in turn, 4 ranks": partial(collections, ranks=4),
}
"""Fleets without a fault."""

FAULTY: Final[dict[str, Kind]] = {
    **{f"a slow rank, {ranks} ranks": partial(slow_ranks, ranks=ranks) for ranks in (2, 8, 64, 256)},
    "a slow rank, 1024 ranks": partial(slow_ranks, ranks=1024, steps=200),
    **{
        f"{count} slow ranks, {ranks} ranks": partial(slow_ranks, ranks=ranks, count=count)
        for count in (2, 4, 8, 20)
        for ranks in (64, 256)
    },
    "a slow host, 64 ranks": slow_hosts,
    "a slow host, 256 ranks": partial(slow_hosts, ranks=256),
    "a slow host of two, 16 ranks": partial(slow_hosts, ranks=16),
    "2 slow hosts, 64 ranks": partial(slow_hosts, count=2),
    "7 slow ranks of a host, 64 ranks": partial(part_of_a_host, count=7),
    "3 slow ranks of a host, 64 ranks": partial(part_of_a_host, count=3),
    "a host's ranks one after the other for 25 steps, 64 ranks": partial(ranks_in_turn, length=25),
    "a host's ranks one after the other for a step, 64 ranks": partial(ranks_in_turn, length=1),
    "a host in bursts of 50 steps, 64 ranks": partial(host_in_bursts, ranks=64, length=50),
    "a host in bursts of 20 steps, 32 ranks": partial(host_in_bursts, ranks=32, length=20),
    "4 ranks in bursts of 50 steps, 16 ranks": partial(in_bursts, ranks=16, count=4, length=50),
    "4 ranks of 4 hosts at every second step, 64 ranks": partial(every_second_step, together=True),
    "4 ranks of 4 hosts at every second step of their own, 64 ranks": partial(every_second_step, together=False),
    "a host drifts, 64 ranks": drifting_host,
    "a host's switch, 64 ranks": slow_switch,
    "4 hosts in turn, 64 ranks": hosts_in_turn,
    **{
        f"a rank in {percent} % of the steps, {how}, 64 ranks": partial(in_part_of_the_steps, share=percent / 100, how=how)
        for percent in (10, 30, 50, 70)
        for how in ("random", "bursts", "periodic")
    },
    "a rank of two, 30 % from step 130 on": partial(pair, scatter=SCATTER, first=130, by_us=0.3 * STEP_US),
    "a rank of two, noise 0.5 %, from step 250 on": partial(pair, scatter=0.005, first=250, by_us=SLOW_US),
    **{f"{percent} % of the records lost, 256 ranks": partial(lost_records, share=percent / 100) for percent in (1, 2, 3, 10)},
    "a fifth of the slow rank's records lost, 64 ranks": own_records_lost,
    "10 other ranks without a record, 64 ranks": partial(ranks_lost, folders=True),
    "10 other ranks without a folder, 64 ranks": partial(ranks_lost, folders=False),
    "the slow rank without a folder, 4 ranks": culprit_lost,
    # Healing saves 5 % of the step: whether it is at least that, the data need not tell.
    "a rank + 50 ms in 30 % of the steps beside moving pauses, 64 ranks": partial(beside_pauses, by_us=50_000.0, undecided=True),
    "a rank + 100 ms in 30 % of the steps beside moving pauses, 64 ranks": partial(beside_pauses, by_us=100_000.0),
    "a slow rank is replaced in mid-run, 64 ranks": replaced,
    "a restart, 64 ranks": restarted,
    "parameters averaged at every 8th step, 8 ranks": partial(local_steps, every=8),
    "parameters averaged at every 8th step, other waits unknown, 8 ranks": partial(local_steps, every=8, waits_known=False),
    "parameters averaged at every 40th step, 8 ranks": partial(local_steps, every=40),
    "parameters averaged at every 40th step, other waits unknown, 8 ranks": partial(local_steps, every=40, waits_known=False),
    "a rank is stopped once, 8 ranks": stopped_once,
    "a rank's checkpoints, 8 ranks": checkpoints,
    "evaluations of all ranks, 8 ranks": evaluations,
}
"""Fleets with a fault; each is also judged without it."""
