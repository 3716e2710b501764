"""``python -m evidence time|run|page|check|fuzz [NAME [PART ...]]``

time   check the answers, measure speed or memory, and write evidence/results
run    train or compute the evidence for a subject's claims; continues an interrupted run
page   write the pages and pictures of the documentation from the committed results
check  time again, add the ratios to history.json, and fail where one fell by more than 15% against
       the committed one
fuzz   compare random domains and options with the definitions (its own options: fuzz --help)
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from fredholm.errors import FredholmError

from .kit.claims import primary_texts
from .kit.subject import Options, Subject, find_subject, subject_names


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    try:
        return run(words)
    except FredholmError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def run(words: list[str]) -> int:
    """Execute a command line and return its exit code."""
    # `fuzz` has options of its own.
    if words and words[0] == "fuzz":
        return importlib.import_module("evidence.fuzz").main(words[1:])

    args = parse(words)
    for file in args.imports:
        from fredholm.operators import import_file

        import_file(file)
    options = options_of(args)

    if args.what == "page":
        names = [args.name, *args.parts] if args.name else subject_names()
        for name in names:
            write(find_subject(name))
        return 0

    if args.name is None:
        args.name = "performance"
    subject = find_subject(args.name)
    import torch

    torch.set_num_threads(options.threads)
    if args.what == "check":
        return check(subject, options)
    run_parts(subject, args, options)
    return 0


def run_parts(subject: Subject, args: argparse.Namespace, options: Options) -> None:
    """Call the named parts of a subject, or all of them.

    Raises:
        SystemExit: unknown parts, or ``--only`` without the part that it belongs to.
    """
    parts = subject.times if args.what == "time" else subject.runs
    unknown = [part for part in args.parts if part not in parts]
    if not parts:
        raise SystemExit(
            f"{args.what} {subject.name}: expected a subject with parts to {args.what}, got none; "
            f"name another subject"
        )
    if unknown:
        raise SystemExit(
            f"{args.what} {subject.name}: expected one of {', '.join(parts)}, got {unknown[0]}"
        )
    if args.only and not args.parts and len(parts) > 1:
        raise SystemExit(
            f"--only {args.only[0]!r}: expected a part of {subject.name}, got none; name one of "
            f"{', '.join(parts)}: {args.what} {subject.name} PART --only ..."
        )

    if args.what == "run" and subject.claims:
        options.primary = primary_texts(subject.find(subject.claims))
    for part in args.parts or parts:
        subject.call(parts[part], options)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m evidence",
        description=__doc__,
        epilog=f"names: {', '.join(subject_names())}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["time", "run", "page", "check", "fuzz"])
    parser.add_argument("name", nargs="?", type=_name, choices=subject_names(), metavar="NAME")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a subject; default: all")
    parser.add_argument("--only", nargs="+", default=[], help="sections, variants, operators")
    parser.add_argument(
        "--seeds", type=int, help="number of seeds of trained runs; default: set by each section"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="start no new work after this time"
    )
    parser.add_argument("--threads", type=int, help="default: 1 to run, all to time")
    parser.add_argument("--runs", type=Path, help="folder of trained runs (default: runs/NAME)")
    parser.add_argument("--results", type=Path, help="folder of the numbers")
    parser.add_argument("--set", nargs="+", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--import", action="append", default=[], dest="imports", metavar="FILE")
    parser.add_argument(
        "--small", action="store_true", help="trial with small sizes, into runs/NAME/trial"
    )
    return parser.parse_args(words)


def _name(word: str) -> str:
    """Return a subject's name; the name of its file is accepted as well."""
    return word.replace("_", "-")


def options_of(args: argparse.Namespace) -> Options:
    threads = args.threads
    if not threads:
        threads = 1 if args.what == "run" else os.cpu_count() or 1
    options = Options(tuple(args.only), args.seeds, args.minutes, threads)
    options.runs = args.runs or Path("runs") / (args.name or "evidence")

    # Runs and numbers of a trial must not mix with the real ones.
    if args.small or args.changes:
        options.runs /= "trial"
        options.results = options.runs
    options.results = args.results or options.results
    options.changes = tuple(args.changes)
    options.small = args.small
    return options


def write(subject: Subject) -> None:
    """Write a subject's pages and draw their pictures."""
    for path, function in subject.pages.items():
        path.write_text(subject.call(function), encoding="utf-8")
        print(f"written to {path}")
    if subject.draw:
        subject.call(subject.draw)


def check(subject: Subject, options: Options) -> int:
    """Time the cases again and print those whose ratio fell; return 1 if there are any, else 0."""
    from .kit.check import fallen
    from .kit.history import record

    if not subject.cases:
        raise SystemExit(f"check {subject.name}: expected a subject with timed cases, got none")
    before = subject.call(subject.ratios)
    now = list(subject.call(subject.cases, options))
    worse = fallen(before, now)
    if subject.history:
        record(subject.name, now, options.results)
    print("\n".join(worse) or "no ratio fell by more than 15%")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
