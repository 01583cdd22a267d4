"""`make dashboards`: every layer, one after the other; says what each found. Exits 1 if any found a mistake."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dashboards import build
from dashboards.checks import live, look, names, scene, schema, syntax


def main() -> int:
    """Run all layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pictures",
        type=Path,
        default=Path("build/dashboards"),
        help="folder for the pictures of both dashboards (default: %(default)s)",
    )
    parser.add_argument(
        "--gap-s", type=float, default=15, help="seconds between two kills (default: %(default)s)"
    )
    options = parser.parse_args()
    outcomes = [
        _told("up to date", _stale),
        _told("Grafana's types", lambda: schema.mistakes(schema.schemas())),
        _told("PromQL", lambda: [*syntax.mistakes(), *syntax.rules()]),
        _told("metric names, both ways", names.mistakes),
        *_watched(options.pictures, options.gap_s),
    ]
    return 0 if all(outcomes) else 1


def _watched(pictures: Path, gap_s: float) -> Sequence[bool]:
    lacking = [name for name in (scene.missing(), look.missing()) if name is not None]
    if lacking:
        print(f"not run, live queries and pictures: {', '.join(lacking)}")
        return []
    print("a job under faults and one without, scraped each second …", flush=True)
    with tempfile.TemporaryDirectory(prefix="harness-dashboards-") as folder:
        pages = Path(folder) / "pages"
        look.pages(pages)
        with scene.scene(Path(folder), pages, 3, gap_s) as watched:
            outcomes = [
                _told("live queries", lambda: live.mistakes(watched)),
                _told("pictures", lambda: look.mistakes(watched, pictures)),
            ]
    print(f"pictures: {pictures}/dashboard-run.png, {pictures}/dashboard-fleet.png")
    return outcomes


def _stale() -> Sequence[str]:
    built = build.dashboards().items()
    stale = [name for name, one in built if (build.INTO / name).read_text() != build.text(one)]
    return [f"{name} is not what is built; run: python -m dashboards.build" for name in stale]


def _told(layer: str, check: Callable[[], Sequence[str]]) -> bool:
    found = check()
    print(f"{'FAIL' if found else 'ok  '}  {layer}", flush=True)
    for line in found:
        print(f"      {line}")
    return not found


if __name__ == "__main__":
    sys.exit(main())
