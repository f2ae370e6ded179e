"""The ``workbench`` command: parse, call the library, print text or JSON.

Exit 0 on success, 1 on a finding, 2 on wrong usage or unreadable input with one line on stderr, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from workbench import __version__
from workbench.cli import bodies, files, machine, models, physics
from workbench.errors import WorkbenchError


def parser() -> argparse.ArgumentParser:
    """The command line as argparse sees it."""
    main_parser = argparse.ArgumentParser(
        prog="workbench", description="Predict where to cut a streaming model into megakernels."
    )
    main_parser.add_argument("--version", action="version", version=__version__)
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in (machine, models, physics, bodies, files):
        group.add_commands(commands)
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON instead of text")
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except WorkbenchError as error:
        print(f"workbench {arguments.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"workbench {arguments.command}: interrupted; what was measured is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"workbench {arguments.command}: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr
        )
        return 2
