"""What is not collected where an optional package is missing."""

from importlib.util import find_spec

from workbench.bodies.compiling import SOURCES

collect_ignore = [] if find_spec("triton") else [f"workbench/bodies/{name}.py" for name in (*SOURCES, "launch")]
