"""The life of a run, as a function: ``advance(run, event) -> (run, commands)``. No I/O, no clock.

The whole elastic logic is here. The controller executes the commands and feeds outcomes back as
events; the simulator does the same on a simulated world. A change of membership or layout is one
mechanism, a Transition, that passes through stages:

    unplanned (a loss)          halt -> plan -> prepare -> restore -> switch -> training
    planned (join, notice)      plan -> prepare -> halt -> restore -> switch -> training

In a planned one the old generation trains until the halt, and anything that goes wrong before the
halt leaves it training. Whatever goes wrong later starts over, one generation higher.
"""

from __future__ import annotations
