"""Planted defects: attention that is wrong in one way each, to show what the battery catches.

``SOUND`` must pass every check; each of ``DEFECTS`` must fail one in every dtype of its
``seen_in``, which leaves out where the defect is smaller than a dtype's rounding. The first line
of a class's docstring says what is wrong with it.
"""

from harness.conformance.planted import arithmetic, behaviour, masking
from harness.conformance.planted.sound import Sound, SoundMaterialised

SOUND: tuple[type[Sound], ...] = (Sound, SoundMaterialised)
DEFECTS: tuple[type[Sound], ...] = (*arithmetic.DEFECTS, *masking.DEFECTS, *behaviour.DEFECTS)

__all__ = ["DEFECTS", "SOUND", "Sound", "SoundMaterialised"]
