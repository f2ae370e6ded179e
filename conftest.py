"""What is not collected: a program that is run by itself, and what needs an optional package that is missing."""

from importlib.util import find_spec

from workbench.bodies.compiling import SOURCES

collect_ignore = ["tests/oracles/bodies_interpreted.py"]
if not find_spec("triton"):
    collect_ignore += [f"workbench/bodies/{name}.py" for name in (*SOURCES, "launch")]
