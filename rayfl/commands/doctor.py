"""``rayfl doctor``: is this machine fit, and what is to be mended."""

import argparse
import dataclasses
import sys
from collections import Counter
from pathlib import Path

from rayfl.commands.command import DONE, FAILED, Command, count, print_json, say, takes_out


def doctor(args: argparse.Namespace) -> int:
    """One line per finding, as they come."""
    from rayfl.doctor.finding import Finding
    from rayfl.doctor.isolation import examine

    wait = say if sys.stderr.isatty() and not args.json else lambda line: None
    out = str(Path(args.out).expanduser().absolute())
    found: list[Finding] = []
    for finding in examine(wait, args.patience, out=out, root=args.root, address=args.address):
        found.append(finding)
        if not args.json:
            remedy = f"; fix: {finding.remedy}" if finding.remedy else ""
            title = finding.check.replace("_", " ")
            print(f"{finding.level:8} {title:14} {finding.text}{remedy}", flush=True)
    levels = Counter(finding.level for finding in found)
    if args.json:
        findings = [dataclasses.asdict(finding) for finding in found]
        print_json({"problems": levels["problem"], "warnings": levels["warning"], "findings": findings})
    else:
        print(f"problems: {levels['problem']}, warnings: {levels['warning']}")
    return FAILED if levels["problem"] else DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl doctor`` takes."""
    takes_out(parser, "folder of results, whose MLflow store is looked at")
    parser.add_argument(
        "--root", metavar="DIR", help="folder of prepared datasets (default: where runs look)"
    )
    parser.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster to join, not one started here")
    parser.add_argument("--patience", metavar="N", type=count, default=1, help="wait N times as long")


EXAMPLES = "  rayfl doctor\n  rayfl doctor --json\n  rayfl doctor --out results --root /scratch/data"

COMMAND = Command(
    name="doctor",
    help="Check this machine, Ray, MLflow and data; say what to mend.",
    examples=EXAMPLES,
    arguments=arguments,
    main=doctor,
)
"""Exit code 0 without a problem, 1 with one. Takes less than a minute, whatever hangs."""
