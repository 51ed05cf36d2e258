"""``python -m evenkeel.trainer_sdk.launcher.agent``: what ``evenkeel launch`` runs, one on each host."""

import argparse
import logging
import os
import signal
import sys

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.trainer_sdk.launcher.agent.agent import Agent
    from evenkeel.trainer_sdk.launcher.agent.engine_job import is_job_file, load_engine_job
    from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
    from evenkeel.trainer_sdk.launcher.agent.script_rank import preload
    from evenkeel.trainer_sdk.launcher.description.run_folder import held
    from evenkeel.trainer_sdk.launcher.foreground import Parser, run_in_foreground
    from evenkeel.trainer_sdk.launcher.launcher import Launcher

EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run this host's ranks; returns 0 when they finished, 1 when some were given up, 2 on bad input."""
    parser = Parser(
        prog="evenkeel launch",
        description="Run a script as replicas, some on each host: call it on every host, with the same arguments but "
        "--node-rank. A rank that ends before its work is done is replaced within a fraction of a second.",
        epilog="Example: evenkeel launch --nproc-per-node 3 examples/replicas/ddp.py",
    )
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="hosts that begin the job; default 1")
    parser.add_argument("--node-rank", type=int, default=0, metavar="K", help="this host, counted from 0")
    parser.add_argument("--nproc-per-node", type=int, default=1, metavar="N", help="ranks on each host; default 1")
    parser.add_argument("--replica-size", type=int, default=1, metavar="N", help="ranks of a replica; default 1")
    parser.add_argument(
        "--rdzv-endpoint",
        default="",
        metavar="HOST:PORT,...",
        help="where the job's stores are, on an odd number of the hosts, three of them for example: any host may die",
    )
    parser.add_argument(
        "--rdzv-id", default="", metavar="NAME", help="name of the job; default 'job', or what its file says"
    )
    parser.add_argument("--max-restarts", type=int, default=10, metavar="N", help="of each replica; default 10")
    parser.add_argument("-m", "--module", action="store_true", help="the script is the name of a module")
    parser.add_argument(
        "script", help="Python file that calls run.replicate, see docs/on_your_loop.md; or JOB.json, see docs/engine.md"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    options = parser.parse_args(arguments)
    _log_to_standard_error()
    try:
        job = ScriptJob(
            job_id=options.rdzv_id or "job",
            script=options.script,
            arguments=tuple(options.arguments),
            is_module=options.module,
            num_hosts=options.nnodes,
            host=options.node_rank,
            num_ranks=options.nproc_per_node,
            replica_size=options.replica_size,
            stores=tuple(each.strip() for each in options.rdzv_endpoint.split(",") if each.strip()),
            max_restarts=options.max_restarts,
        )
        if is_job_file(job):
            return _run_engine(job, options.rdzv_id)
        preload()
        return Agent(job).serve()
    except ValueError as error:
        print(f"evenkeel launch: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run_engine(job: ScriptJob, job_id: str) -> int:
    environment = {**os.environ, "EVENKEEL_JOB_ID": job_id or os.environ.get("EVENKEEL_JOB_ID", "")}
    spec, model = load_engine_job(job, environment)
    logging.getLogger("evenkeel.launcher").addHandler(logging.getLogger("evenkeel.launch").handlers[0])
    with held(spec.run_dir):
        return run_in_foreground(Launcher(spec, model))


def _log_to_standard_error() -> None:
    """The agent's own words only: what is set up here is set up in the script's processes too."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s launch: %(message)s"))
    logger = logging.getLogger("evenkeel.launch")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:  # while torch was loading: nothing runs yet
        status = 128 + signal.SIGINT
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to clean up, and some libraries report "leaks" when the interpreter ends
