"""``rayfl jobs``: what was submitted to a cluster, how it goes, and its results."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl.commands.command import DONE, FAILED, Command, print_json, say, takes_actions

if TYPE_CHECKING:
    from rayfl.clusters.jobs import Job, Jobs


def list_jobs(args: argparse.Namespace) -> int:
    """rayfl's jobs on the cluster."""
    from rayfl import text

    found = connect(args).all()
    if args.json:
        print_json({"jobs": [asdict(job) for job in found]})
    elif found:
        rows = [(job.id, job.status, *_times(job), job.command) for job in found]
        print(text.columns([("id", "status", "started", "took", "command"), *rows]))
    else:
        print("no jobs of rayfl")
    return DONE


def _times(job: "Job") -> tuple[str, str]:
    from rayfl import text

    if job.started_s is None:
        return "-", "-"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.started_s))
    return started, text.in_time((job.ended_s or time.time()) - job.started_s)


def logs(args: argparse.Namespace) -> int:
    """What a job has printed, or goes on printing."""
    jobs = connect(args)
    job = jobs.find(args.id)
    if args.follow:
        return report(args, follow(args, jobs, job))
    print(jobs.logs(job.id), end="", file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        print_json(asdict(job))
    return DONE


def follow(args: argparse.Namespace, jobs: "Jobs", job: "Job") -> "Job":
    """Show what a job prints until it has ended. Ctrl-C leaves the job alone."""
    stream = sys.stderr if args.json else sys.stdout
    try:
        job = jobs.follow(job.id, lambda printed: print(printed, end="", file=stream, flush=True))
    except KeyboardInterrupt:
        say(f"the job goes on: rayfl jobs logs {job.id} --follow{_at(args)} shows it, "
            f"rayfl jobs stop {job.id}{_at(args)} ends it")  # fmt: skip
        raise
    say(f"{job.id} {job.status}, its results are in {job.out} on the cluster; "
        f"to have them here: rayfl jobs fetch {job.id}{_at(args)}")  # fmt: skip
    return job


def report(args: argparse.Namespace, job: "Job") -> int:
    """The job as JSON where that is wanted, and the exit code that it stands for."""
    if args.json:
        print_json(asdict(job))
    return FAILED if job.status in ("FAILED", "STOPPED") else DONE


def stop(args: argparse.Namespace) -> int:
    """End a job in order: what it has finished is kept."""
    from rayfl.clusters.jobs import ENDED

    jobs = connect(args)
    job = jobs.find(args.id)
    if job.status in ENDED:
        say(f"{job.id} had ended before")
    else:
        say(f"stopping {job.id}, which may take to the end of a round")
        job = jobs.stop(job.id)
    if args.json:
        print_json(asdict(job))
    else:
        print(f"{job.id} {job.status}")
    return DONE if job.status in ENDED else FAILED


def fetch(args: argparse.Namespace) -> int:
    """Bring a job's result files here."""
    from rayfl import text
    from rayfl.clusters import fetching

    jobs = connect(args)
    job = jobs.find(args.id)
    to = Path(args.to or job.id)
    written = fetching.fetch(jobs, job, to, args.weights)
    size = sum(path.stat().st_size for path in written)
    if args.json:
        print_json({"id": job.id, "folder": str(to), "files": [str(path) for path in written], "bytes": size})
    else:
        tables = [str(path) for path in written if path.suffix == ".md"]
        print("\n".join([f"{len(written)} files, {text.in_bytes(size)}, in {to}", *tables]))
    return DONE


def connect(args: argparse.Namespace) -> "Jobs":
    """The jobs of the cluster at ``--address``."""
    from rayfl.clusters.head import find_head

    # Whether it answers is known at once; what follows imports ray, which takes seconds.
    head = find_head(args.address)
    from rayfl.clusters.jobs import Jobs

    return Jobs(head)


def _at(args: argparse.Namespace) -> str:
    return f" --address {args.address}" if args.address else ""


def takes_address(parser: argparse.ArgumentParser) -> None:
    """``--address URL``."""
    default = "RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265"
    parser.add_argument("--address", metavar="URL", help=f"the head's Jobs API (default: {default})")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl jobs`` takes."""
    takes_actions(parser, ACTIONS, _add_options)


def _add_options(sub: argparse.ArgumentParser, action: str) -> None:
    """Those of one action."""
    takes_address(sub)
    if action != "list":
        sub.add_argument("id", metavar="ID", help="a job: rayfl jobs list")
    if action == "logs":
        sub.add_argument("--follow", action="store_true", help="go on until the job has ended")
    if action == "fetch":
        sub.add_argument("--to", metavar="DIR", help="where to (default: a folder named like the job)")
        sub.add_argument("--weights", action="store_true", help="the global models too")


ACTIONS = {
    "list": (list_jobs, "List what was submitted.", "  rayfl jobs list --address http://head:8265"),
    "logs": (logs, "Show what a job has printed.", "  rayfl jobs logs raysubmit_X --follow"),
    "stop": (stop, "End a job in order; submitted again, it goes on.", "  rayfl jobs stop raysubmit_X"),
    "fetch": (
        fetch,
        "Bring a job's tables, results and ledgers here.",
        "  rayfl jobs fetch raysubmit_X --to results --weights",
    ),
}

EXAMPLES = """\
  rayfl jobs list
  rayfl jobs logs raysubmit_X --follow
  rayfl jobs stop raysubmit_X
  rayfl jobs fetch raysubmit_X --to results"""

COMMAND = Command(
    name="jobs",
    help="List, follow and stop what was submitted to a Ray cluster, and fetch its results.",
    examples=EXAMPLES,
    arguments=arguments,
    main=list_jobs,
)
