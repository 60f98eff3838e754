"""The console's themes. State is never shown by colour alone, but also by a glyph or word."""

from typing import Final

from textual.theme import Theme

# The blue, orange, vermillion and sky blue of Okabe and Ito's palette, told apart with any kind of colour vision.
THEMES: Final = (
    Theme("dark", primary="#5fafd7", secondary="#87afaf", accent="#d7af5f", warning="#ffaf00", error="#ff5f5f"),
    Theme(
        "light",
        primary="#005f87",
        secondary="#5f8787",
        accent="#875f00",
        warning="#af5f00",
        error="#af0000",
        dark=False,
    ),
    Theme(
        "colour-blind",
        primary="#56b4e9",
        secondary="#0072b2",
        accent="#f0e442",
        success="#56b4e9",
        warning="#e69f00",
        error="#d55e00",
        background="#101010",
    ),
)
NAMES: Final = tuple(theme.name for theme in THEMES)
