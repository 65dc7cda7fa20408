"""The machine that measures; it knows no implementation by name."""
