"""``rayfl submit``: a run, a sweep or a search as a job on a Ray cluster."""

import argparse

from rayfl.commands.command import Command, say
from rayfl.commands.jobs import connect, follow, report, takes_address


def submit(args: argparse.Namespace) -> int:
    """Check, pack, send, follow."""
    from rayfl.clusters import parcel, request, submission

    asked = request.read_request(args.inner)
    environment = submission.environment(args.env)
    files = list(dict.fromkeys([*asked.files(), *map(request.below_here, args.with_file)]))
    jobs = connect(args)
    if not args.no_check:
        for named in request.check_sent(asked, asked.check(), files):
            say(f"{named} is not sent: the cluster must have it there")
    sent = parcel.pack(files, args.ship_rayfl)
    say(f"sending {parcel.summary(sent)}")
    job = submission.send(jobs, asked, sent, args.python, environment)
    say(f"{job.id} at {jobs.head.url}: {job.command}")
    if not args.no_wait:
        return report(args, follow(args, jobs, job))
    if not args.json:
        print(job.id)
    return report(args, job)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl submit`` takes."""
    takes_address(parser)
    also = "send this file of the folder too; may be repeated"
    ship = "send rayfl as it is here (default: the cluster has the same version)"
    python = "the Python on the cluster that has rayfl (default: python)"
    env = "set in the job's environment, no secrets; may be repeated"
    unchecked = "don't check the request here: it names files that only the cluster has"
    parser.add_argument("--no-wait", action="store_true", help="print the job's id and leave")
    parser.add_argument("--with-file", metavar="FILE", action="append", default=[], help=also)
    parser.add_argument("--ship-rayfl", action="store_true", help=ship)
    parser.add_argument("--python", metavar="PROGRAM", default="python", help=python)
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help=env)
    parser.add_argument("--no-check", action="store_true", help=unchecked)
    parser.add_argument(
        "inner", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="run, sweep or tune with its arguments"
    )


EXAMPLES = """\
  rayfl submit -- run fedavg.mnist5k rounds=50
  rayfl submit --address http://head:8265 -- sweep tune_configs/demo.yaml --out /shared/results
  rayfl submit --no-wait -- run fedavg.digits algorithm.name=my_module:MyMethod

what is sent: the YAML files named, the modules of this folder that the method needs, and --with-file.
results stay on the cluster, in --out (default there: ~/rayfl-results): rayfl jobs fetch brings them."""

COMMAND = Command(
    name="submit",
    help="Send a run, a sweep or a search to a Ray cluster and follow it there.",
    examples=EXAMPLES,
    arguments=arguments,
    main=submit,
)
