"""Record `everhold demo` as an SVG for the README: `python tools/recording.py`.

The demo runs at a terminal of its own. Each line of the picture appears after as many seconds as it
did in that run. The picture has no script, no font and no address of its own, so it may be shown
anywhere; where nothing moves, all lines are there at once.
"""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from fcntl import ioctl
from html import escape
from itertools import pairwise
from pathlib import Path
from termios import TIOCSWINSZ

from rich.ansi import AnsiDecoder
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COMMAND = ("everhold", "demo")
COLUMNS = 100
LINE, CHARACTER, MARGIN, BAR = 18, 7.8, 16, 34
# the edge shows where the window ends, on a dark page too
BACKGROUND, FOREGROUND, EDGE = "#16181d", "#d7dae0", "#4a4f59"

#: A line, and the seconds after which it was printed.
TimedLine = tuple[float, str]


def record(command: Sequence[str], columns: int) -> list[TimedLine]:
    """Run a command at a terminal; returns what it prints, as it came."""
    pid, terminal = pty.fork()
    if pid == 0:
        folder = str(Path(sys.executable).parent)
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        path = f"{folder}:{os.environ['PATH']}"
        os.execvpe(command[0], list(command), {**kept, "PATH": path, "TERM": "xterm-256color"})
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    began = time.monotonic()
    lines: list[TimedLine] = []
    part = b""
    while True:
        select.select([terminal], [], [])
        try:
            some = os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        if not some:
            break
        *whole, part = (part + some).split(b"\n")
        at = time.monotonic() - began
        lines += [(at, line.decode().rstrip("\r")) for line in whole]
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n" + "\n".join(line for _, line in lines))
    return lines


def draw(lines: Sequence[TimedLine], title: str, columns: int) -> str:
    """The SVG: a terminal window in which the lines appear."""
    typed = [(0.0, f"\x1b[2m$\x1b[0m \x1b[1m{title}\x1b[0m")]
    rows = list(_wrap([*typed, *lines], columns))
    width = round(columns * CHARACTER + 2 * MARGIN)
    height = BAR + len(rows) * LINE + MARGIN
    drawn = [
        f'<text x="{MARGIN}" y="{BAR + LINE * (n + 1) - 5}" style="animation-delay:{at:.2f}s">'
        f"{_draw_text(text)}</text>"
        for n, (at, text) in enumerate(rows)
        if text.plain.strip()
    ]
    lights = [
        f'<circle cx="{MARGIN + 4 + 18 * n}" cy="17" r="5.5" fill="{color}"/>'
        for n, color in enumerate(("#ec6a5e", "#f4bf4f", "#61c554"))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            "<style>",
            "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
            f"monospace;fill:{FOREGROUND};white-space:pre;animation:show .01s both}}",
            "@keyframes show{from{opacity:0}to{opacity:1}}",
            "@media (prefers-reduced-motion:reduce){text{animation:none}}",
            "</style>",
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
            f' fill="{BACKGROUND}" stroke="{EDGE}"/>',
            *lights,
            *drawn,
            "</svg>",
            "",
        ]
    )


def _wrap(lines: Sequence[TimedLine], columns: int) -> Iterator[tuple[float, Text]]:
    """The lines as a terminal breaks them."""
    decoder = AnsiDecoder()
    for at, line in lines:
        text = decoder.decode_line(line)
        yield from ((at, text[n : n + columns]) for n in range(0, max(len(text), 1), columns))


def _draw_text(text: Text) -> str:
    """The spans of a line, each with its style. Spaces are kept in browsers that ignore CSS."""
    ends = sorted({0, len(text), *(end for span in text.spans for end in (span.start, span.end))})
    parts = []
    for start, end in pairwise(ends):
        style = Style.null()
        for span in text.spans:
            if span.start <= start < span.end and isinstance(span.style, Style):
                style += span.style
        words = escape(text.plain[start:end], quote=False).replace(" ", "\xa0")
        parts.append(f"<tspan{_draw_style(style)}>{words}</tspan>" if style else words)
    return "".join(parts)


def _draw_style(style: Style) -> str:
    found = ""
    if style.color is not None:
        found += f' fill="{style.color.get_truecolor(MONOKAI).hex}"'
    if style.bold:
        found += ' font-weight="bold"'
    if style.dim:
        found += ' opacity=".55"'
    return found


def read_picture(picture: str) -> list[str]:
    """The lines of a picture as text, without those that are empty."""
    found = re.findall(r"<text [^>]*>(.*?)</text>", picture)
    plain = [re.sub(r"<[^>]+>", "", line).replace("\xa0", " ") for line in found]
    return [line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for line in plain]


def main() -> None:
    lines = record(COMMAND, COLUMNS)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(lines, " ".join(COMMAND), COLUMNS), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(lines)} lines, {lines[-1][0]:.1f} s")


if __name__ == "__main__":
    main()
