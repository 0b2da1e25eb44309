"""python -m tests.programs NAME...: build what is not there yet, and print where each is."""

from __future__ import annotations

import sys

from tests.programs.build import PACKAGES, ProgramError, built

if __name__ == "__main__":
    names = sys.argv[1:]
    if not names or set(names) - PACKAGES.keys():
        sys.exit(f"usage: python -m tests.programs NAME..., of {' '.join(PACKAGES)}")
    try:
        found = built(*names)
    except ProgramError as error:
        sys.exit(f"programs: {error}")
    print(*found.values(), sep="\n")
