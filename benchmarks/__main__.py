"""`python -m benchmarks [WORKLOAD ...] [--quick] [--json FILE] [--out FILE]`: lakepond beside its peers."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

from benchmarks import atari, lake, lake_atari, lake_scale, market, random_data, vectors
from benchmarks.report import Section, machine

WORKLOADS = {"market": market.run, "atari": atari.run, "random": random_data.run, "lake": lake.run}
WORKLOADS |= {"lake-atari": lake_atari.run, "lake-scale": lake_scale.run, "vectors": vectors.run}


def main() -> int:
    """Run, print, write; 1 when a bar was missed in a full run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="lakepond beside its peers")
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="workload",
        help=f"{', '.join(WORKLOADS)}; none: all of them; check: the peers' adapters only",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke of about a minute: its times mean nothing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the numbers as measured")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report in Markdown")
    asked = parser.parse_args()
    for name in asked.workloads:
        if name not in (*WORKLOADS, "check"):
            parser.error(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)} and check.")
    warnings.simplefilter("ignore")  # the peers' own

    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    facts = {"command": command, **machine()}
    head = "# Benchmarks\n\n" + "\n".join(f"- {name}: {fact}" for name, fact in facts.items()) + "\n"
    if asked.quick:
        head += "- **quick**: a smoke; its times mean nothing\n"
    print(head, flush=True)
    sections: list[Section] = []
    for name in asked.workloads or WORKLOADS:
        begin = time.perf_counter()
        made = [atari.check()] if name == "check" else WORKLOADS[name](asked.quick)
        made[-1].notes.append(f"the {name} workload took {time.perf_counter() - begin:,.0f} s")
        sections += made
        for section in made:
            print(section.markdown(), flush=True)
    missed = sum(section.missed for section in sections)
    verdict = f"{missed} bars missed." if missed else "Every bar reached."
    print(verdict)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text("\n".join([head, *[section.markdown() for section in sections], verdict + "\n"]))
    if asked.json:
        found = {**facts, "quick": asked.quick, "sections": [section.as_json() for section in sections]}
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(missed > 0 and not asked.quick)


if __name__ == "__main__":
    sys.exit(main())
