"""What an output is worth: the float64 reference, measures of its error, the bound it must keep."""
