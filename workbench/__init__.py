"""Predict where to cut a streaming model into megakernels.

    profile files ─► profiles ─┐
    kernel benchmarks ─► cost ─┤
    model ─► program ─► compose ─► lower (tiles + events) ─► simulate ─► predict
    machine ─► hardware ───────┘                                           │
    measured runs (measure) ─────────────────► compare ◄─ search ◄─────────┘
                                                   └─► classify ─► figures, widgets, cli

In the order the data flows; a module imports only rows above it (``tests/test_imports.py``):

``errors``       the exception tree
``effects``      which physical effects are priced
``bodies``       tile bodies for GPUs, and what a compiler makes of them
``shapes``, ``program``   what operators move and compute; operators, loops, stages. ``models`` has those that ship
``compose``      regions, compositions, cuts, legality
``hardware``, ``gpu``   a device and its overheads, each number with its provenance; GPUs from sourced files
``profiles``     profiler files to one kernel table; kernels to operators
``tiles``, ``events``, ``lower``   the tile graph and the event graph of a region
``cost``         tables of standalone kernel benchmarks
``simulate``     integer-time simulation, critical path, timeline
``uncertainty``  intervals and ties
``predict``, ``search``   time to first output of a composition; exact selection and tie set
``why``, ``sensitivity``   where the time goes, and between two compositions; at what device another would win
``pareto``, ``static_shape``   time to first output against throughput; engines that are full before they speak
``calibrate``, ``worth``   the constants that are fitted; what each physical effect is worth
``measure``      the CPU as a device: runtime, benchmarks, capture, runs
``compare``, ``classify`` predictions against measured runs; the four categories
``published``    predictions against published measurements, nothing refitted
``figures``, ``widgets``, ``cli``  table to figure; notebook widgets; the ``workbench`` command

Importing this package imports none of them, and neither torch nor numba.
"""

__version__ = "0.1.0"
