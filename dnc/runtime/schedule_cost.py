"""What a schedule is predicted to take: its busiest replica's queue, counted.

In: an encoded schedule. Out: counts in the order of `dnc.ir.machine.Constants`. Wavefronts, exchanges,
gradients and updates are those that the launch will run, because they are read off its own words.
"""

from __future__ import annotations

from dnc.ir.costs import Costs, Counts, nanoseconds
from dnc.ir.machine import Constants
from dnc.runtime.schedule import Schedule, header, queue


def busiest(schedule: Schedule, costs: Costs, constants: Constants) -> Counts:
    """The counts of the replica whose queue takes longest by `constants`, launch and weights included."""
    head = header(schedule.words, schedule.plan)
    workers = range(0, head["replicas"] * head["workers"], head["workers"])
    found = [costs.queue(queue(schedule.words, schedule.plan, worker)) for worker in workers]
    return costs.launch() + max(found, key=lambda counts: nanoseconds(counts, constants))
