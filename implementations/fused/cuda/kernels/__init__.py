"""Device code, in Triton's language: ``forward``, ``combine`` and ``backward`` on the same pieces.

Whoever imports a module of this package needs triton.

Names: queries and keys are positions in their sequences, rows and columns those of a tile.
Exponents are to base 2, which the hardware has. Scores are multiplied by log2(e) together with the
scale, so that the exponent of a weight is ``score - maximum``; with a bias they stay natural, since
the product of log2(e) and the most negative number is -inf, which would exclude the pair.
"""
