"""`python -m analysis report PATH` for people and scripts, `python -m analysis digest` for the server's worker."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.errors import BadDump

NOTHING_READ = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: something was analysed; 2: nothing could be read, said in one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except BadDump as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return NOTHING_READ
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader (head, less) left; nothing to say
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Reads profiler dumps of Ascend training runs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="say what a dump shows", description="Say what a dump shows.")
    report.add_argument("path", type=Path, help="a rank's dump, a folder of several, or a .zip or .tar.gz of them")
    report.add_argument("--json", action="store_true", help="print the report as JSON instead of tables")
    report.add_argument("--html", type=Path, metavar="FILE", help="write the report as one HTML page instead")
    report.add_argument(
        "--config",
        type=Path,
        help="model sizes and split: the run's MindSpore Transformers YAML, or a Megatron job's script or log",
    )
    report.add_argument("--soc", help="exact chip name, such as Ascend910B3, where the dump does not tell")
    report.add_argument("--log", type=Path, help="training log: step times, loss and gradient norm by step")
    report.add_argument("--lang", choices=("en", "zh"), default="en", help="English or Simplified Chinese")
    report.set_defaults(run=_report)
    digest = commands.add_parser("digest", help="write a rank's entry and tables (for the server)")
    digest.add_argument("--files", type=Path, required=True, help="JSON: folder name, and file label -> path")
    digest.add_argument("--out", type=Path, required=True, help="folder for entry.json and the Parquet tables")
    digest.add_argument("--stage", type=Path, help="file that tells what the work is at")
    digest.set_defaults(run=_digest)
    find = commands.add_parser("find", help="tell the dumps in an archive or a folder (for the server)")
    find.add_argument("--path", type=Path, required=True, help="the archive, or the folder")
    find.add_argument("--name", required=True, help="what errors call it")
    find.add_argument("--out", type=Path, required=True, help="folder for found.json and what is unpacked")
    find.add_argument("--stage", type=Path, help="file that tells what the work is at")
    find.set_defaults(run=_find)
    return parser


def _report(options: argparse.Namespace) -> None:
    report = build_report(options.path, config=options.config, soc=options.soc, log=options.log)
    if options.json:
        json.dump(report, sys.stdout, ensure_ascii=False, indent=1, allow_nan=False)
        print()
        return
    if options.html:
        _write_page(report, options.html, options.path, options.lang)
        return
    from analysis.printed import print_report

    print_report(report, lang=options.lang)


def _write_page(report: dict[str, Any], target: Path, dump: Path, lang: str) -> None:
    from analysis.page import html_page

    config = (report.get("config") or {}).get("name")
    name = Path(config).stem if config else dump.resolve().name
    try:
        target.write_text(html_page(report, str(name), lang), encoding="utf-8")
    except OSError as error:
        raise BadDump(str(target), f"cannot be written: {error.strerror or error}") from error


def build_report(
    path: Path, *, config: Path | None = None, soc: str | None = None, log: Path | None = None
) -> dict[str, Any]:
    """The report of everything under `path`. Ranks that cannot be read are warned of; raises BadDump when none can."""
    from analysis.config import read_config
    from analysis.dump import opened
    from analysis.report import capture_report

    model = read_config(_read(config), config.name) if config else None
    logged, log_warnings = _log(log)
    with opened(path) as dumps:
        results, errors = _ranks(dumps)
        if not results:
            raise errors[0]
        run = next((dump.run_meta for dump in dumps if dump.run_meta), {})
    series = logged or next((result.series for result in results if result.series), [])
    report = capture_report(
        [(result.entry, result.source) for result in results], config=model, run=run, series=series, soc=soc
    )
    report["source"]["warnings"] += [*(str(error) for error in errors), *log_warnings]
    return report


def _ranks(dumps: Sequence[Any]) -> tuple[list[Any], list[BadDump]]:
    from analysis.rank import read_ranks

    results, errors = [], []
    for dump in dumps:
        try:
            results.extend(read_ranks(dump))
        except BadDump as error:
            errors.append(error)
    return results, errors


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDump(str(path), f"cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from error


def _log(path: Path | None) -> tuple[list[dict[str, Any]], list[str]]:
    if path is None:
        return [], []
    if not path.is_file():
        raise BadDump(str(path), "is no file")
    from analysis.readers.train_log import read_log

    result = read_log(path)
    unread = [f"{path.name}: {result.unreadable} step lines cannot be read"] if result.unreadable else []
    return list(result.steps), [*unread, *result.warnings]


def _others(result: Any, world_size: int | None) -> list[dict[str, int]]:
    """The other devices in the files, each with its rank: the server makes each a rank of the capture. Those whose
    rank is not known, or cannot be, are warned of."""
    ranks = {device: rank for device, rank in result.device_ranks.items() if world_size is None or rank < world_size}
    if left := [device for device in result.other_devices if device not in ranks]:
        own = result.entry["device_id"]
        held = sorted([*result.other_devices, own])
        shown = f"only device {own} is reported" if not ranks else f"devices {sorted([own, *ranks])} are reported"
        result.source["warnings"].append(f"holds devices {held}; {shown}, not {left}")
    return [{"device": device, "rank": rank} for device, rank in sorted(ranks.items())]


def _digest(options: argparse.Namespace) -> None:
    """One rank for the server: entry.json last, so that its being there means all is there."""
    from analysis.dump import dump_from_files
    from analysis.rank import read_rank
    from analysis.store import write_frames

    try:
        order = json.loads(_read(options.files))
        files = {str(name): Path(place) for name, place in order["files"].items()}
        folder = str(order.get("folder") or "")
        rank, device, world_size = (
            value if isinstance(value := order.get(key), int) else None for key in ("rank", "device", "world_size")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDump(str(options.files), "is not a list of files") from error
    absent = next((name for name, place in files.items() if not place.is_file()), None)
    if absent is not None:
        raise BadDump(absent, "its bytes are not where they should be")
    tell = _teller(options.stage)
    dump = dump_from_files(files, folder)
    result = read_rank(dump.sent_as(rank, device, exact=order.get("exact") is True), tell)
    others = _others(result, world_size)
    tell("writing")
    write_frames(options.out, result.frames)
    keep_indexes(options.out, result.frames)
    entry = {"entry": result.entry, "source": result.source, "series": result.series, "others": others}
    _write_whole(options.out / "entry.json", json.dumps(entry, ensure_ascii=False, allow_nan=False))


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _teller(stage: Path | None) -> Callable[[str], None]:
    """Tells whoever waits what the work is at, by a file."""
    return (lambda name: _write_whole(stage, name)) if stage else (lambda name: None)


def keep_indexes(folder: Path, frames: Mapping[str, Any]) -> None:
    """The indexes of timeline and names, where making them at the first view would keep somebody waiting."""
    from analysis.kernel_names import write_names
    from analysis.lanes import WORTH_KEEPING, write_index

    kernels = frames.get("kernels")
    if kernels is not None and kernels.height >= WORTH_KEEPING:
        write_index(folder, frames)
        write_names(folder, kernels)


def _find(options: argparse.Namespace) -> None:
    """The dumps in what was sent, for the server: found.json last, so that its being there means all is there."""
    from analysis.unpacking import find

    found = find(options.path, options.name, options.out, _teller(options.stage))
    _write_whole(options.out / "found.json", json.dumps(found, ensure_ascii=False))
