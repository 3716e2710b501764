"""``python -m evidence time|run|page|check|fuzz [NAME [PART ...]]``

time   measure speed or memory, answers checked first, into evidence/results
run    train or compute the evidence that a subject's claims are judged by; goes on where it stopped
page   write the pages and pictures of the documentation from the committed results
check  time again, keep the ratios in history.json, and fail where one fell by more than 15% against
       the committed one
fuzz   random domains and options against the definitions (its own options: fuzz --help)
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from fredholm.errors import FredholmError

from .kit.subject import Options, Subject, find_subject, subject_names


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    try:
        return run(words)
    except FredholmError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def run(words: list[str]) -> int:
    """Do what the command line says; its exit code."""
    if words and words[0] == "fuzz":  # with options of its own
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
    parts = {"time": subject.times, "run": subject.runs}[args.what]
    unknown = [part for part in args.parts if part not in parts]
    if unknown or not parts:
        needs = f"one of {', '.join(parts)}" if parts else f"another subject than {subject.name}"
        raise SystemExit(f"{args.what} {subject.name} {' '.join(unknown)}: needs {needs}")
    if args.only and not args.parts and len(parts) > 1:
        raise SystemExit(
            f"--only {args.only[0]!r}: of which part of {subject.name}? Name it before: "
            f"{args.what} {subject.name} PART --only ..., with one of {', '.join(parts)}"
        )
    if args.what == "run" and subject.claims:
        options.primary = tuple(c.text for c in subject.find(subject.claims) if c.primary)
    for part in args.parts or parts:
        subject.call(parts[part], options)
    return 0


def _name(word: str) -> str:
    """A subject's name; a file's name is one as well."""
    return word.replace("_", "-")


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
    parser.add_argument("--seeds", type=int, help="of trained runs; default: each section's own")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then begin nothing")
    parser.add_argument("--threads", type=int, help="default: 1 to run, all to time")
    parser.add_argument("--runs", type=Path, help="folder of trained runs (default: runs/NAME)")
    parser.add_argument("--results", type=Path, help="folder of the numbers")
    parser.add_argument("--set", nargs="+", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--import", action="append", default=[], dest="imports", metavar="FILE")
    parser.add_argument(
        "--small", action="store_true", help="sizes that show that it runs; into runs/NAME/trial"
    )
    return parser.parse_args(words)


def options_of(args: argparse.Namespace) -> Options:
    threads = args.threads or (1 if args.what == "run" else os.cpu_count() or 1)
    options = Options(tuple(args.only), args.seeds, args.minutes, threads)
    options.runs = args.runs or Path("runs") / (args.name or "evidence")
    if args.small or args.changes:  # whose runs and numbers are not to be mixed with the real ones
        options.runs /= "trial"
        options.results = options.runs
    options.results = args.results or options.results
    options.changes, options.small = tuple(args.changes), args.small
    return options


def write(subject: Subject) -> None:
    """A subject's pages, and their pictures."""
    for path, function in subject.pages.items():
        path.write_text(subject.call(function), encoding="utf-8")
        print(f"written to {path}")
    if subject.draw:
        subject.call(subject.draw)


def check(subject: Subject, options: Options) -> int:
    """1 where a ratio fell, with the cases; 0 where none did."""
    from .kit.check import fallen
    from .kit.history import record

    if not subject.cases:
        raise SystemExit(f"check {subject.name}: it has no timed cases")
    before, now = subject.call(subject.ratios), list(subject.call(subject.cases, options))
    worse = fallen(before, now)
    if subject.history:
        record(subject.name, now, options.results)
    print("\n".join(worse) or "no ratio fell by more than 15%")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
