"""The exception tree: what a caller may catch.

    WorkbenchError (a ValueError)
    ├── ProfileError      a file cannot be read, or does not hold what it should
    ├── ProgramError      a program breaks a rule of its tree or its data flow
    ├── CompositionError  a composition is illegal, with the reason
    ├── GraphError        a tile or event graph cannot be simulated
    └── MeasureError      a benchmark, a run or a stored table cannot be used

Every message says what was given, where, the rule that it breaks and, where there is one, the way out.
"""


class WorkbenchError(ValueError):
    """Something a person gave cannot be used; the message is one line."""


class ProfileError(WorkbenchError):
    """A profile or benchmark file cannot be read as what it claims to be."""


class ProgramError(WorkbenchError):
    """A program breaks a rule of its tree or its data flow."""


class CompositionError(WorkbenchError):
    """A composition is illegal for its program."""


class GraphError(WorkbenchError):
    """A tile or event graph breaks a rule that the simulator relies on."""


class MeasureError(WorkbenchError):
    """A benchmark, a device table or a measured run cannot be used."""
