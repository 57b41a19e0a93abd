"""The report page in a headless browser, from disk and without a network."""

import contextlib
import os
import shutil
import signal
import subprocess

import matplotlib.image
import numpy as np
import pytest

from electra_tf.__main__ import main as command
from electra_tf.config.commands import PARTS
from tests import tiny_run
from tests.analysis.test_analyze import data, flags  # noqa: F401

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
HOSTILE = "<script>x()</script>"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None, reason=f"none of {', '.join(NAMES)} is on the PATH"
    ),
]


def browse(page, home, *arguments):
    """Returns the browser's output for a page and its console lines."""
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu"),
        *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"),
        *(f"--user-data-dir={home / 'profile'}", *arguments, page.as_uri()),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A process group, so that one signal ends all processes of the browser.
    with subprocess.Popen(command, start_new_session=True, **pipes) as browser:
        try:
            out, err = browser.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
    assert browser.returncode == 0, err
    said = [line for line in err.splitlines() if ":CONSOLE:" in line]
    return out, said


@pytest.fixture(scope="module")
def page(tmp_path_factory, flags):  # noqa: F811
    home = tmp_path_factory.mktemp("page")
    model = tiny_run.save(home / "run", mask_rate=0.5)
    arguments = [f"--model={model}", f"--output={home / 'report'}"]
    assert command(["analyze", *arguments, *flags, f"--inspect={HOSTILE}"]) == 0
    return home / "report" / "report.html"


def test_the_page_opens_from_disk_and_the_console_is_silent(page, tmp_path):
    # This script counts the pictures; the page itself has no script.
    counting = (
        "<script>onload = () => { document.title = `${document.images.length} "
        "pictures, ${[...document.images].filter(i => !i.naturalWidth).length} "
        "broken, ${performance.getEntriesByType('resource').filter(e => "
        "!e.name.startsWith('data:')).length} fetched`; }</script>"
    )
    counted = tmp_path / "counted.html"
    source = page.read_text()
    assert "<script" not in source
    counted.write_text(source.replace("</head>", f"{counting}</head>"))
    found, said = browse(counted, tmp_path, "--dump-dom")
    assert said == []
    pictures = source.count("<img ")
    assert pictures > len(PARTS)
    assert f"<title>{pictures} pictures, 0 broken, 0 fetched</title>" in found
    assert found.count("<section>") == len(PARTS)


def test_the_screenshot_is_not_blank(page, tmp_path):
    target = tmp_path / "page.png"
    size = "--window-size=1000,1400"
    _, said = browse(page, tmp_path, size, f"--screenshot={target}")
    assert said == []
    pixels = matplotlib.image.imread(target)[..., :3]
    assert pixels.shape[1] == 1000
    colors = np.unique((pixels.reshape(-1, 3) * 255).astype(int), axis=0)
    assert len(colors) > 100
    # Some pixels are dark (text and pictures); most are white.
    assert 0.01 < (pixels.min(axis=-1) < 0.9).mean() < 0.6


def test_what_is_amiss_would_be_seen(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(f"<title>x</title>{HOSTILE}")
    _, said = browse(bad, tmp_path, "--dump-dom")
    assert any("ReferenceError" in line for line in said)
