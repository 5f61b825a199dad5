"""The pictures of README and the documents, drawn again from today's code: ``python -m experiments pictures``.

Noise and trees are seeded, so that a test can tell whether what a picture shows is what the code makes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from hedgerow.cli.main import main as hedgerow
from hedgerow.data.binned import SiteData
from hedgerow.data.datasets import write_rand_hie
from hedgerow.data.site_data import bound_sites, read_site_rows
from hedgerow.local.training import evaluate_federated, plot_calibration, train
from hedgerow.models import plots
from hedgerow.models.model import Model
from hedgerow.plan.plan import parse_plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.trees.ensemble import ensemble_to_dict

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
DRAWN = FOLDER / "drawn.json"
"""Of what the pictures were drawn, and by which code: see `sources`."""
SEED = 7
WIDTH, GREEN, AMBER, BLUE, INK = 470, "#3d7a4a", "#b07d1a", "#3b5f94", "#26332b"


def sources(model: Model) -> dict[str, str]:
    """Digests of what is drawn: the demonstration's model, and the code that draws it without lines of comment."""
    shown = json.dumps(ensemble_to_dict(model.ensemble), sort_keys=True)
    lines = Path(plots.__file__).read_text(encoding="utf-8").splitlines()
    # The text itself, since each Python writes a syntax tree in its own way.
    drawing = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in (("model", shown), ("drawing", drawing))}


def demonstration(folder: Path) -> tuple[Model, dict[str, SiteData]]:
    """The demonstration's model, the same each time, and the sites' test rows. Its rows are public, so its noise may be
    known; it is drawn as the system's is, for a model of a seed would be shown as void."""
    files = write_rand_hie(folder)
    plan = parse_plan(files.plan.read_text(encoding="utf-8"))
    noise = SystemNoise(random.Random(SEED).randbytes)
    sites = {name: read_site_rows(path, plan) for name, path in files.train.items()}
    model = train(plan, {name: own for name, (own, _) in bound_sites(sites, plan).items()}, noise=noise)
    with open(files.test, newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    held_out = {}
    for name in sorted({row[0] for row in rows}):
        path = folder / f"test-{name}.csv"
        with open(path, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([header, *(row for row in rows if row[0] == name)])
        held_out[f"site-{name}"] = read_site_rows(path, plan)
    return model, {name: own for name, (own, _) in bound_sites(held_out, plan).items()}


def modes(*, narrow: bool) -> str:
    """Who sees what under both kinds of noise, as SVG; for a telephone one below the other."""
    height = 330
    width, height = (WIDTH, 2 * height) if narrow else (2 * WIDTH + 20, height)
    second = f"translate(0 {height // 2})" if narrow else f"translate({WIDTH + 20} 0)"
    words = 'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="15" role="img"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {words}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_panel("the coordinator adds the noise", "server", "masked sums", ("sees exact totals", "adds noise")),
        f'<g transform="{second}">',
        *_panel("the sites add the noise", "distributed", "masked sums + noise", ("sees noisy", "totals only")),
        "</g></svg>\n",
    ])  # fmt: skip


def _panel(title: str, mode: str, sent: str, seen: tuple[str, ...]) -> list[str]:
    parts = [_text(WIDTH // 2, 28, title, INK, bold=True), _text(WIDTH // 2, 50, f'noise = "{mode}"', "#555555")]
    for number, site in enumerate("ABC"):
        top = 72 + 80 * number
        parts.append(_box(12, top, 120, 62, "#eaf3ea", GREEN))
        parts += [_text(72, top + 26, f"hospital {site}", INK, bold=True), _text(72, top + 47, "rows stay", INK)]
        parts.append(f'<path d="M134 {top + 31} L196 {162 + 20 * number}" stroke="{GREEN}" stroke-width="2"/>')
    parts += [_text(96, 318, sent, GREEN), _box(198, 112, 132, 140, "#fdf3e0", AMBER)]
    parts.append(_text(264, 140, "coordinator", "#4a3508", bold=True))
    parts += [_text(264, 168 + 24 * at, line, "#4a3508", size=13) for at, line in enumerate((*seen, "one ledger line"))]
    parts += [_text(264, 168 + 24 * (len(seen) + 1), "a round", "#4a3508", size=13)]
    parts.append(f'<path d="M332 182 L364 182" stroke="{AMBER}" stroke-width="2"/>')
    parts.append(_box(366, 122, 96, 120, "#e8eef7", BLUE))
    out = enumerate(("model,", "report:", "epsilon,", "delta"))
    return [*parts, *(_text(414, 152 + 24 * at, line, "#1d3454", size=13) for at, line in out)]


def _box(x: int, y: int, width: int, height: int, fill: str, line: str) -> str:
    size = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="8"'
    return f'<rect {size} fill="{fill}" stroke="{line}" stroke-width="1.5"/>'


def _text(x: int, y: int, words: str, fill: str, *, bold: bool = False, size: int = 15) -> str:
    weight = ' font-weight="bold"' if bold else ""
    words = words.replace('"', "&quot;")
    return f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" text-anchor="middle"{weight}>{words}</text>'


def _photograph_survey(folder: Path) -> None:
    """The page of a survey, by a browser (CHROMIUM, or what is installed): the picture stays as it is without one."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser is None:
        return
    sites = [word for path in sorted((folder).glob("site-*.csv")) for word in ("--site", str(path))]
    asked = ("--label", "visited", "--unit", "zper", "--without", "site", "--epsilon", "1")
    assert hedgerow(["survey", *sites, *asked, "--out", str(folder / "statistics")]) == 0
    look = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,900")
    page = (folder / "statistics" / "report.html").as_uri()
    subprocess.run([browser, *look, f"--screenshot={FOLDER / 'survey.png'}", page], check=True, capture_output=True)


def main(argv: list[str]) -> int:
    """The documents' pictures, drawn again: both kinds of noise, shapes, calibration; and of what they are drawn."""
    for name, is_narrow in (("hedgerow", False), ("hedgerow-narrow", True)):
        (FOLDER / f"{name}.svg").write_text(modes(narrow=is_narrow), encoding="utf-8")
    with tempfile.TemporaryDirectory() as made:
        model, held_out = demonstration(Path(made))
        _photograph_survey(Path(made))
    plots.plot_shapes(model, FOLDER / "shapes.png")
    noise = SystemNoise(random.Random(SEED).randbytes)
    plot_calibration(evaluate_federated(model, held_out, epsilon=1, noise=noise), FOLDER / "calibration.png")
    DRAWN.write_text(json.dumps(sources(model), indent=1) + "\n", encoding="utf-8")
    return 0
