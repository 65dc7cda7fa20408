"""From axes and options to the list of cases that a run will measure; pure, without torch."""
