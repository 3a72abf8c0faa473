"""Draws page.png from page.txt with the font that Pillow carries, so that what is to be read is known."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

_FOLDER = Path(__file__).resolve().parent
_SIZE_PIXELS = (1000, 760)
_LINE_PIXELS = 96
_MARGIN_PIXELS = 44


def main() -> None:
    lines = (_FOLDER / "page.txt").read_text().splitlines()
    picture = Image.new("L", _SIZE_PIXELS, 255)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        place = (_MARGIN_PIXELS, _MARGIN_PIXELS + _LINE_PIXELS * number)
        draw.text(place, line, fill=0, font=ImageFont.load_default(40))
    picture.save(_FOLDER / "page.png", optimize=True)


if __name__ == "__main__":
    main()
